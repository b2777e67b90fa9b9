"""The wire contract of swarms: names and messages."""
