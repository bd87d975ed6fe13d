"""Demo agents: plain programs on the OpenAI SDK, and a rule-based stand-in for an LLM judge of their work."""
