"""Swarms: sets of components that farro keeps in the requested state (seed 003, PocketHive).

A caller submits a command (requests.py); the orchestrator, one per root, sends it to the controller of the swarm; the
controller starts and stops components in the order of their queues, and confirms what it observed. All of them talk
over a bus (bus/) in the messages of wire/. Components are written with component/.
"""
