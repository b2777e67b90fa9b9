"""The views that `farro top` switches between: each makes rows of what looking gathered.

Gathering lives in looking, one job's own screen in job_screen. Views are drawn on the loop, and never block.
"""
