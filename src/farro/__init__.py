"""farro runs agent and command work that you can trust: a job is a folder, a plan is its steps, a role is a queue.

Nothing is imported here before it is asked for, so that `farro --version` and small commands start at once.
`farro.add_task` adds a step to the plan whose step is running.
"""

TYPE_CHECKING = False  # as typing has it, which is slow to import
if TYPE_CHECKING:
    from farro.tasks import add_task

__all__ = ["__version__", "add_task"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "add_task":
        from farro.tasks import add_task

        return add_task
    raise AttributeError(f"module 'farro' has no attribute {name!r}")
