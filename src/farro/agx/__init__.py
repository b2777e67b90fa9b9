"""The planner: a draft that grows from words and commands into a plan, and the desk that hands plans in as jobs.

Nothing here runs a step: what a plan may say lives in plans, running in execution, printing in cli.
"""
