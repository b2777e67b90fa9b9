"""Protocols that others speak to farro: RESP (AGQ). Each turns requests into operations and answers into replies.

No rules and no stores live here.
"""
