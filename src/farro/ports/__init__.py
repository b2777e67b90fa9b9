"""Protocols with their guarantees in words.

No implementation lives here.
"""
