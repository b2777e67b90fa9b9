"""The structured log, the audit log and the alert rules. Nothing here changes a job."""
