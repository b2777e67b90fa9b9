"""The orchestrator: one process a root that carries out what is asked of its swarms."""
