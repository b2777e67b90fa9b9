"""Import the commands of `farro`, then wait for the command line to run: `ready.py FD [FOLDER]`.

program.py starts it for commands that a test waits for. The start of the interpreter is tested by the daemons, which
are always started anew, and by test_start, test_first_use, test_smoke and test_demo.
"""

from __future__ import annotations

import os
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[0] = TESTS

import copies  # noqa: E402
import measured  # noqa: E402

del sys.path[0]
write = measured.start(sys.argv[2], copies=True) if sys.argv[2:] else None

import atexit  # noqa: E402
import contextlib  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402

from farro.__main__ import main  # noqa: E402
from farro.cli.commands import COMMANDS  # noqa: E402

# Modules that commands import only when they use them.
LATER = ("app", "execution.work", "execution.runners.inline", "worker.worker", "worker.drain")
LATER += ("queue.foreground", "store.files.views", "store.files.prune", "worker.watchdog", "worker.process_runtime")
for module in sorted({place.partition(":")[0] for place in COMMANDS.values()} | {f"farro.{name}" for name in LATER}):
    importlib.import_module(module)

order = json.loads(copies.await_order(int(sys.argv[1])))
os.chdir(order["cwd"])
os.environ.clear()
os.environ.update(order["env"])
sys.argv[:] = order["argv"]
if write is not None:

    @atexit.register  # main ends the process by SystemExit
    def write_branches() -> None:
        with contextlib.suppress(OSError):  # a test took away what it needs for that
            write()


main()
