"""What is learned, from real vLLM through the proxy to the trainer and back, beside TRL's GRPOTrainer."""
