"""Loops that happen by themselves: worker, watchdog, manager.

What a person asks for lives in operations.
"""
