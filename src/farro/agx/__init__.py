"""The planner: a draft grows from commands and words into a plan, which is saved or submitted as a job."""
