"""The rules of agent work: role names, prompts, tasks, policies, allowed paths, answers and the workflow.

Pure: no files, no processes, no providers.
"""
