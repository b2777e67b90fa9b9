"""Offer Air-Executor's view of jobs to the slices above: named jobs, and the progress of a job in its words."""

from farro.air.named_jobs import ResetResult as ResetResult
from farro.air.named_jobs import named_job_id as named_job_id
from farro.air.named_jobs import reset_named_job as reset_named_job
from farro.air.status import JobStatus as JobStatus
from farro.air.status import TaskState as TaskState
from farro.air.status import job_status as job_status
