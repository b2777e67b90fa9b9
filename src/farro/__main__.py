"""The way in: `farro` and `python -m farro`. Answers the version, adds tasks and runs a worker's job before anything
heavy is imported.

Commands live in cli.
"""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from farro import __version__

        sys.stdout.write(f"farro {__version__}\n")
        return
    if sys.argv[1:3] == ["task", "add"]:  # a plan may add a thousand, each from a process of its own
        from farro.cli.task_line import run as add

        sys.exit(add(sys.argv[3:]))
    if sys.argv[1:2] == ["run-job"]:  # started by a worker for each job: its imports are the price of a runner
        from farro.execution.runners import run_job

        run_job.end(run_job.main())
    from farro.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
