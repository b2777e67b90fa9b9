"""The orchestrator: one process per root that carries out the commands of its swarms."""
