"""The wire contract of swarms: names, messages, and the AsyncAPI document."""
