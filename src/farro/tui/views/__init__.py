"""The views of `farro top`: each turns query results into rows. Views never block."""
