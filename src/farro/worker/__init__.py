"""Loops that happen by themselves: worker, watchdog, manager, scheduler.

What a person asks for lives in operations.
"""
