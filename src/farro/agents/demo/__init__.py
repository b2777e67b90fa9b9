"""`farro demo`: SPEC-1's functional acceptance in a scratch repository, with real daemons."""
