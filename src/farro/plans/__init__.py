"""RULES of a plan, pure: steps (`model`), input forms (`forms`), loading (`loading`), references and order (`graph`), tags.

No operating system, no execution. Nothing is imported here: whoever needs only `tags` must not pay for pydantic.
"""
