"""Commands of agent work: costs, demo, inbox, provider-test, replay."""
