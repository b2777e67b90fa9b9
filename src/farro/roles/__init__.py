"""RULES of agent work, pure: the prompt's contract, policies, lexical path rules, what each role answers.

No files, no processes, no providers: those are guard, providers and execution.agents.
"""
