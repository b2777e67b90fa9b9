"""The model gateway: agents' programs reach models through the worker, which holds the key and counts the tokens."""
