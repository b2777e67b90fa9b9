"""Agent work: prompts that providers answer, the manager that routes jobs between roles, inbox, costs and replay."""
