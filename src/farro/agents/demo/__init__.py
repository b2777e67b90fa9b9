"""`farro demo`: SPEC-1's functional acceptance as a play. The stage (scene), what happens on it (play), the repository.

How it is shown lives in cli; what the daemons do is their own: the demo starts the same ones as `farro start`.
"""
