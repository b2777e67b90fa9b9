"""What anyone may ask, one function a verb. The CLI, fronts and services call these.

No argument parsing, no printing, no loops.
"""
