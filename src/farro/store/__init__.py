"""The adapters of the Store port: files (default), redis (many machines) and memory (tests).

The rules they consult live in kernel.
"""
