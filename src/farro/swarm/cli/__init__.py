"""Commands of swarms, and of farro up."""
