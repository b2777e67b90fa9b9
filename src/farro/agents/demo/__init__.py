"""`farro demo`: SPEC-1's functional acceptance in a scratch repository, with the same daemons that `farro start`
starts.
"""
