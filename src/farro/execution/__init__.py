"""Runs a plan: steps, pipes, timeouts, results.

What a plan is lives in plans; how a process is started lives in system.
"""
