"""The structured log and the audit log. Nothing here changes a job."""
