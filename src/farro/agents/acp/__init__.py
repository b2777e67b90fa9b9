"""Talk to coding agents over the Agent Client Protocol: JSON-RPC on the agent's standard input and output."""
