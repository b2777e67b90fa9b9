"""Commands of agent work: costs, demo, inbox, provider, provider-test, replay."""
