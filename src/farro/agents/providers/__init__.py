"""The Provider port and its adapters: what answers the prompts of agents."""
