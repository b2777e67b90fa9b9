"""The controller of one swarm."""
