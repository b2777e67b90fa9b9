"""Serve farro over HTTP: the API, server-sent events, metrics and the dashboard.

The modules here decode requests, check access and encode responses; the work itself is done by the queue, agents, air
and swarm packages. The contract is docs/http.md and schemas/openapi.json.
"""
