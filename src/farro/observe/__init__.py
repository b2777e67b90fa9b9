"""What farro tells of itself: the structured log (the audit log, metrics and stats come with their issues).

Deciding what happens lives elsewhere; nothing here changes a job.
"""
