"""The MCP front: farro's operations as tools and resources for coding agents, over stdin and stdout.

No rules of jobs live here: what a tool does is one operation; whether it may, whoever starts the server says
(docs/decisions/an-mcp-client-may-only-read-unless-allowed.md).
"""
