"""The two managers of swarms: the orchestrator, which knows what is wanted, and a controller for each swarm.

Rules live in swarm; what carries messages lives in buses; what starts processes lives in runtimes.
"""
