"""All jobs of a store in memory, for whoever looks at them again and again: lists, pages, counts, curves, events.

What one job says in full is read from the store when it is asked for (operations.jobs); protocols live in fronts.
"""
