"""The commands `farro swarm`, and the hidden ones that run the processes of swarms."""
