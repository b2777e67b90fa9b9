"""`farro top`: watch and control queues, workers, jobs, logs and swarms on one screen.

The store is never called on the drawing thread: `queries` and `actions` run in other threads.
"""
