"""The commands `farro swarm` and `farro up`, and the hidden ones that run the processes of swarms."""
