"""What farro tells of itself: the structured log and the audit log (metrics and stats come with their issue).

Deciding what happens lives elsewhere; nothing here changes a job.
"""
