"""Guardrails: the sandbox, physical path checks, redaction.

What a prompt may say lives in roles; starting ordinary processes lives in system.
"""
