"""RULES of swarms, pure: the plan, names on the wire, signals, confirmations, lifecycles, order, status, reconciling.

Buses carry the messages, runtimes start the components, services decide with these rules; nothing here touches either.
"""
