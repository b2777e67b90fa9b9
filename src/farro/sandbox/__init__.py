"""The guard: what a job's processes may touch, kept by the kernel; and what is looked at where the kernel cannot.

What a job is lives above (execution, services); starting and ending processes, below (system).
"""
