"""RULES of a plan, pure: its shape (`model`), input forms, loading, references and order (`graph`), tags.

No operating system, no execution. Nothing is imported here: whoever needs only `tags` must not pay for the rest.
"""
