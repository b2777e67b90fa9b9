"""The desk over a RESP queue on another machine (`farro agq`, or whatever speaks as AGQ does), with a Redis client.

The commands that it sends are those of docs/agq.md; the words of the desk live in desk.
"""
