"""farro for programs: a queue, its jobs, and functions as tasks. What is public is named in `farro` itself.

No rules and nothing that the commands could not do: both call operations.
"""
