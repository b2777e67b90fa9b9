"""The adapters of the Store port: files (default) and memory (tests).

The rules they consult live in kernel.
"""
