"""Serve farro to coding agents as MCP tools and resources, over stdin and stdout.

Each tool is one operation of a queue. The person who starts the server decides what it may do
(docs/decisions/an-mcp-client-may-only-read-unless-allowed.md).
"""
