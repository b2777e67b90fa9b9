"""The adapters of the Provider port: who answers agents' prompts.

What is asked and what is made of the answer lives in execution.agents.
"""
