"""Check a root and its machine, and make a root."""
