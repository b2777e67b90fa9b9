"""RULES of a job, pure: envelope, states, outcome, retry, ids, places.

No operating system, no clock, no randomness of its own.
"""
