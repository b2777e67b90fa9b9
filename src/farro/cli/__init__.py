"""The command line: a file per noun. It turns arguments into operations and answers into text.

No rules and no filesystem work live here.
"""
