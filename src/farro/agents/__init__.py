"""An agent's step: from a prompt and its policy to a request, from an answer to a result of the role's own form.

Providers live in providers; running a plan's steps lives beside this.
"""
