"""Claim and commit jobs through the batch port: most tests depend on its form only here."""

from farro.testing.one_job import claim_one, commit_all, commit_one, release_one, route_one

__all__ = ["claim_one", "commit_all", "commit_one", "release_one", "route_one"]
