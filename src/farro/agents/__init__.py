"""Agent work: prompts that providers answer, the manager that routes jobs between roles, the inbox, costs and replay."""
