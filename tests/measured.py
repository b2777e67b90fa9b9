"""Which branches of src a test process takes: its modules are instrumented when they are imported.

What is made of it lives in scripts/branches.py; `make test` names the folder to write to in FARRO_BRANCHES.

Instrumented, not traced: a tracer doubles the run, and while an exception is pending in a thread that is blocked in C,
as execution sends them, CPython 3.11 with a tracer turns in place for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable

from support import ROOT


def start() -> Callable[[], None]:
    """To be called before the first import of farro. The answer writes down the branches that were taken."""
    folder = os.environ.get("FARRO_BRANCHES")
    if not folder:
        return lambda: None
    import slipcover

    # What was seen stays instrumented (-1): taking it out again changes functions under the feet of their threads.
    seen = slipcover.Slipcover(branch=True, d_miss_threshold=-1, exclude_lines=[])
    files = slipcover.FileMatcher(sources=[os.path.join(ROOT, "src")])
    slipcover.ImportManager(seen, files).__enter__()
    pid = os.getpid()

    def write() -> None:
        if os.getpid() != pid:
            return  # a copy of the test process, made by a test
        with contextlib.chdir(ROOT):  # its file names are told from here
            told = seen.get_coverage()["files"]
        taken = {name: file["executed_branches"] for name, file in told.items()}
        with open(os.path.join(folder, f"{pid}.json"), "w", encoding="utf-8") as file:
            json.dump(taken, file)

    return write
