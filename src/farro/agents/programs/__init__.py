"""Coding agents that people have installed: how each is started, what its output means, when a session can go on."""
