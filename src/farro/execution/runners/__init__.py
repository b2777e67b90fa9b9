"""Adapters of the Runner port: run a claimed job inside the worker, or in a child process."""
