"""The entry points `farro` and `python -m farro`, and the fast paths that must not import click."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from farro import __version__

        sys.stdout.write(f"farro {__version__}\n")
        return
    if sys.argv[1:3] == ["task", "add"]:  # a plan may add a thousand, each from a process of its own
        from farro.cli.task_line import run as add

        sys.exit(add(sys.argv[3:]))
    if sys.argv[1:2] == ["run-job"]:  # its imports are the price of a runner where there is no template
        from farro.execution.runners import run_job

        run_job.end(run_job.main())
    gc.disable()  # importing makes no garbage; cli.main enables it when the command is loaded
    from farro.cli import plain

    code = plain.run(sys.argv[1:])
    if code is None:
        from farro.cli.main import run

        code = run(sys.argv[1:])
    sys.exit(code)


if __name__ == "__main__":
    main()
