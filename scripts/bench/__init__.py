"""The benchmark behind `make bench`: floor, farro and peers doing the same no-op jobs. bench.py beside this runs it.

Nothing here is part of farro. `gear`, `floor` and `drive_*` run inside the contestants' processes and environments; the
rest runs in the coordinator, with the standard library only.
"""
