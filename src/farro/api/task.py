"""`@farro.task`: make a function a task, queue calls of it, and check that its arguments are JSON."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from farro.api.options import ONCE, Duration, TaskOptions, TaskRetries, over, request, retrying
from farro.errors import BadArgument, InputError
from farro.execution import function_calls, task_file
from farro.execution.tools import FUNCTION
from farro.jobs.request import JobRequest, timeout_s
from farro.lazy_dataclass import dataclass, replace

if TYPE_CHECKING:
    from farro.api.job import Job
    from farro.api.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")  # what calling the function returns: of an async one, a coroutine
V = TypeVar("V")  # the value of its job

STEP = "call"  # the id of the one step of a task's job
_DEEPEST = 100


@overload
def task(function: Callable[P, Coroutine[Any, Any, V]], /) -> Task[P, Coroutine[Any, Any, V], V]: ...
@overload
def task(function: Callable[P, V], /) -> Task[P, V, V]: ...
@overload
def task(
    *,
    role: str | None = None,
    priority: str | None = None,
    tags: Iterable[str] = (),
    timeout: Duration | None = None,
    retries: int = 0,
    retry_delay: Duration = 0,
    retry_backoff: float = 1,
    queue: Queue | None = None,
) -> _Decorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    role: str | None = None,
    priority: str | None = None,
    tags: Iterable[str] = (),
    timeout: Duration | None = None,
    retries: int = 0,
    retry_delay: Duration = 0,
    retry_backoff: float = 1,
    queue: Queue | None = None,
) -> Any:
    """Make a function one that jobs may call: `@farro.task`, or `@farro.task(timeout="5m", retries=2)`.

    Calling it is calling the function. `.delay(…)` queues a job that calls it, in a worker.

    - `role`, `priority` (P0 to P3), `tags`: as for any job.
    - `timeout`: seconds, "5m" or a timedelta. With one, the function runs in a process of its own, because nothing else
      can be ended for certain; without, on a thread of the worker, which costs a fraction of it.
    - `retries`: how often it is called again when it raised: at once, or after `retry_delay` (seconds, "10s" or a
      timedelta), which grows by `retry_backoff` from try to try, up to an hour.
    - `queue`: where its jobs go; else FARRO_ROOT, else the nearest root upwards from the working folder.
    """
    given = {"role": role, "priority": priority, "tags": tags, "timeout": timeout}
    options = request(TaskOptions, "task", given)
    _timeout_s(options)  # raises where the task is defined, not where it is called
    again = retrying(retries, retry_delay, retry_backoff)

    def decorated(function: Callable[..., Any]) -> Task[..., Any, Any]:
        return Task(function, options, again, queue)

    return decorated if function is None else decorated(function)


class _Decorator:
    """The type of `task(…)`, for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, V]], /) -> Task[P, Coroutine[Any, Any, V], V]: ...
    @overload
    def __call__(self, function: Callable[P, V], /) -> Task[P, V, V]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        raise NotImplementedError


class Task(function_calls.Marked, Generic[P, R, V]):
    """A function that jobs may call; made by `@farro.task`."""

    def __init__(
        self, function: Callable[P, R], options: JobRequest, retries: TaskRetries = ONCE, queue: Queue | None = None
    ) -> None:
        if not inspect.isroutine(function):
            raise InputError(f"@farro.task is for functions, and {function!r} is none")
        super().__init__(function)
        self._options, self._retries, self._queue = options, retries, queue
        functools.update_wrapper(self, function)
        self._signature = inspect.signature(function)
        self._checked: str | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result

    def __reduce__(self) -> str:
        return self.function.__qualname__  # copied and pickled by name, as functions are

    def __repr__(self) -> str:
        return f"<farro.task {self.function.__module__}:{self.function.__qualname__}>"

    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V]:
        """Queue a job that calls the function with these arguments, which must be JSON."""
        return self.call(*args, **kwargs).enqueue()

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[V]:
        """Return a call that is not queued yet: for `Queue.enqueue` and `enqueue_many`, or as a step of a plan."""
        reference = self._checked or self._reference()
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadArgument(f"{self.function.__name__}(): {error}") from None
        words = self._words(args, kwargs)
        return TaskCall(reference, tuple(words), self._options, self._retries, self._queue)

    def add(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Inside a running step, add a step to the same job that calls this function; return its id."""
        return self.call(*args, **kwargs).add()

    def options(self, **options: Unpack[TaskOptions]) -> Task[P, R, V]:
        """Return the task with other options, those of `Queue.enqueue` and of `@farro.task`:
        `send.options(delay="10m").delay("ann")`."""
        given: dict[str, Any] = {**options}
        own, queue = self._retries._asdict(), given.pop("queue", None)
        for name in own:
            value = given.pop(name, None)
            own[name] = own[name] if value is None else value
        asked = request(TaskOptions, "options", given)
        again = retrying(own["retries"], own["retry_delay"], own["retry_backoff"])
        return Task(self.function, over(asked, self._options), again, queue or self._queue)

    def _reference(self) -> str:
        """Return `module:function` after checking that a worker can import it by that name."""
        name, module = self.function.__qualname__, self.function.__module__
        what = f"{self.function.__name__} cannot be found by a worker"
        put = "put it into a module, such as work.py, and import it from there"
        if name == "<lambda>" or "<locals>" in name:
            raise InputError(f"{what}: it is made inside of a function, and has no name of its own; {put}")
        if "." in name:
            raise InputError(f"{what}: it belongs to a class; {put}")
        if module == "__main__":
            raise InputError(
                f"{what}: it was defined at a prompt, in a notebook or in the script that is running (__main__), which "
                f"no other process can import; {put}"
            )
        found = getattr(sys.modules.get(module), name, None)
        if not isinstance(found, Task) or found.function is not self.function:
            raise InputError(f"{what}: {module}.{name} is {'something else' if found else 'not there'}; {put}")
        self._checked = f"{module}:{name}"
        return self._checked

    def _words(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        """Encode the arguments for the step. Raise BadArgument that names the value which is not JSON."""
        why = ""
        try:
            words = function_calls.arguments(list(args), kwargs)
            if not words or json.loads("".join(words)) == function_calls.call_data(list(args), kwargs):
                return words
        except (TypeError, ValueError, RecursionError) as error:
            words, why = [], f"{error}"
        bound = self._signature.bind(*args, **kwargs).arguments
        fault = next(filter(None, (not_json(value, name) for name, value in bound.items())), None)
        if fault is None and words:
            return words  # only tuples differ, which arrive as lists
        raise BadArgument(
            f"{self.function.__name__}(): {f'the argument {fault}' if fault else why}; a job's arguments are kept as "
            "JSON: text, numbers, True, False, None, lists, and dicts with text as keys"
        )


@dataclass(frozen=True, slots=True)
class TaskCall(Generic[V]):
    """A call of a task, not queued yet; made by `Task.call`."""

    reference: str
    args: tuple[str, ...]  # of the step
    options: JobRequest
    retries: TaskRetries = ONCE
    queue: Queue | None = None

    def enqueue(self) -> Job[V]:
        """Queue a job of this one call."""
        from farro.api import queue

        chosen = queue.default() if self.queue is None else self.queue
        return chosen.enqueue(self)

    def add(self, *, id: str | None = None, needs: Iterable[str] = ()) -> str:  # noqa: A002 - the step's own field
        """Inside a running step, add this call to the same job as a step; return its id."""
        return task_file.add_task(
            self.reference,
            self.args,
            id=id,
            needs=needs,
            timeout=_timeout_s(self.options),
            **self.retries.step_fields,
            tool=FUNCTION,
        )

    def step(
        self,
        id: str,  # noqa: A002 - the step's own field
        *,
        needs: Iterable[str] = (),
        input_from: str | None = None,
    ) -> dict[str, Any]:
        """Return this call as a step for a plan."""
        step: dict[str, Any] = {"id": id, "tool": FUNCTION, "command": self.reference, "args": list(self.args)}
        if needs := list(needs):
            step["needs"] = needs
        if input_from is not None:
            step["input_from_step"] = input_from
        if self.options.timeout is not None:
            step["timeout"] = _timeout_s(self.options)
        return {**step, **self.retries.step_fields}

    def plan(self) -> dict[str, Any]:
        """Return a plan of this one call."""
        return {"name": self.reference, "steps": [self.step(STEP)]}

    def within(self, options: JobRequest) -> TaskCall[V]:
        """Return the call with these options over its own."""
        return replace(self, options=over(options, self.options))


def _timeout_s(options: JobRequest) -> float | None:
    return None if options.timeout is None else timeout_s(options.timeout)


def not_json(value: Any, path: str, depth: int = 0) -> str | None:
    """Say what in a value cannot be kept as JSON, and where; None when all of it can."""
    if value is None or isinstance(value, str | bool | int):
        return None
    if isinstance(value, float):
        return None if value - value == 0 else f"{path} is {value!r}, which JSON does not have"
    if depth > _DEEPEST:
        return f"{path[:80]}… is nested too deeply, or contains itself"
    if isinstance(value, list | tuple):
        found = (not_json(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(value))
        return next(filter(None, found), None)
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                return f"{path} has the key {name!r}, which is not text"
        items = (not_json(item, f"{path}[{name!r}]", depth + 1) for name, item in value.items())
        return next(filter(None, items), None)
    return f"{path} is of the type {type(value).__name__}"
