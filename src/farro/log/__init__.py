"""What farro tells of itself: the structured log, the audit log and stats (metrics come with their issue).

Deciding what happens lives elsewhere; nothing here changes a job.
"""
