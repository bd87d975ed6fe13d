"""What an update costs, beside TRL on the same recorded sessions."""
