"""The command line: a file per noun. It turns arguments into calls of services, and their answers into text.

It contains no rules and does not access the filesystem itself.
"""
