"""How a claimed job is executed (port: Runner): inside the worker, or in a child process of its own.

What a plan's steps are and how they run lives in execution; claiming and committing live in services.
"""
