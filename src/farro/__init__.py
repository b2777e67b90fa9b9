"""farro runs agent and command work that you can trust: a job is a folder, a plan is its steps, a role is a queue.

Nothing is imported here, so that `farro --version` and small commands start at once.
"""

__version__ = "0.1.0"
