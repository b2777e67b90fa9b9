"""Submit plans to a RESP queue on another machine: `farro agq`, or another server of its protocol.

It sends the commands of docs/agq.md. A request that the protocol cannot express is refused with what to do instead.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from farro.agx import drafting
from farro.agx.client import PlanJob, PlanQueue, PlanWorker
from farro.errors import FarroError, InputError, Refused, TryAgain, UnknownJob
from farro.jobs.ids import is_job_id
from farro.jobs.request import JobRequest, as_option
from farro.jobs.states import Status
from farro.lazy_dataclass import replace
from farro.plans import actions as rules
from farro.queue import submit
from farro.queue.library import ActionLine, PlanLine
from farro.queue.submit import DEFAULT_ROLE

PORT = 6380
_ANSWER_S = 30.0
_PIECE = 8 << 20  # bytes of a job's input in one argument
_POLICY = submit.SubmitPolicy(spell=as_option)  # the queue's own config decides about the rest
_LOOK_S = 2.0  # a message may be lost, so the jobs are looked at this often anyway


class RemotePlanClient:
    """Submit over the RESP protocol, with the methods of LocalPlanClient."""

    def __init__(self, client: Any, name: str, mint: Callable[[], str]) -> None:
        self._client = client
        self._name = name
        self._mint = mint

    @classmethod
    def at(cls, address: str, *, key: str | None, mint: Callable[[], str]) -> RemotePlanClient:
        """Connect to agq://HOST[:PORT]. A key in the address is refused: every process of the machine could read it."""
        parts = urlsplit(address)
        try:
            host, port = parts.hostname, parts.port or PORT
        except ValueError as error:
            raise InputError(f"--store: {address}: {error}") from None
        if parts.username is not None or parts.password is not None:
            raise InputError("--store: an address holds no key; set AGQ_KEY, or `agq.key: ${NAME}` in the config")
        if not host or parts.path not in ("", "/") or parts.query:
            raise InputError(f"--store: {address} is not agq://HOST:PORT")
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise FarroError("agq:// needs a Redis client: pip install 'farro[redis]'") from None
        client = redis.Redis(
            host=host,
            port=port,
            password=key,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=5.0,
            protocol=2,
            # Retry once, for a connection that was closed meanwhile: a job pushed twice under its id is one job.
            retry=Retry(NoBackoff(), 1),
        )
        return cls(client, f"agq://{host}:{port}", mint)

    def close(self) -> None:
        self._client.close()

    # --- submitting ---

    def submit(self, plan: Mapping[str, Any], request: JobRequest) -> str:
        if request.force:
            raise InputError("--force is for a root of your own; the queue's own config decides about its caps")
        wanted = rules.fields(plan)
        if wanted:
            raise InputError(f"the plan needs an input ({', '.join(wanted)}): `agx action submit PLAN --inputs FILE`")
        job_id = request.id or plan.get("id") or self._mint()
        role = request.role or plan.get("role") or DEFAULT_ROLE
        request = replace(request, after=[self.job(one).job_id for one in request.after])
        prompt = submit.with_options(plan, submit.offline_options(request, _POLICY))
        steps = [{"tool": "unix", **step} for step in drafting.as_numbered(drafting.steps_of(prompt))]
        job = {**prompt, "id": job_id, "plan_id": prompt.get("plan_id") or job_id, "role": role, "steps": steps}
        queue, data = "queue:ready" if role == DEFAULT_ROLE else f"queue:{role}", request.attachments.input
        if data is None:
            self._ask("LPUSH", queue, as_json(job))
        else:
            pieces = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
            self._ask("JOB.PUSH", queue, as_json(job), *(pieces or [b""]))
        return job_id

    def save_plan(self, plan: Mapping[str, Any], *, name: str | None, replace: bool) -> str:
        kept = {**plan, "plan_id": name} if name is not None else dict(plan)
        return as_text(self._ask("PLAN.SUBMIT", as_json(kept), *(["REPLACE"] if replace else [])))

    def save_action(self, plan_id: str, inputs: Sequence[Any], *, name: str | None) -> str:
        raise InputError(
            f"{self._name} keeps an action when it is handed in: agx action submit {plan_id} --inputs FILE"
        )

    def submit_inputs(
        self, plan_id: str, inputs: Sequence[Any], *, name: str | None, request: JobRequest
    ) -> tuple[str, list[str]]:
        if submit.offline_options(request, _POLICY) != submit.Options() or request.force:
            raise InputError(f"{self._name} takes an action as it is; say tags, timeouts and the like in its plan")
        action = {"plan_id": plan_id, "inputs": list(inputs)} | ({} if name is None else {"action_id": name})
        queue = [] if request.role is None else [f"queue:{request.role}"]
        told = as_object(self._ask("ACTION.SUBMIT", as_json(action), *queue))
        return str(told.get("action_id")), [str(job_id) for job_id in told.get("job_ids") or ()]

    def submit_action(self, action_id: str, request: JobRequest) -> list[str]:
        kept = self.action(action_id)
        return self.submit_inputs(str(kept["plan_id"]), kept["inputs"], name=action_id, request=request)[1]

    def delete_plan(self, plan_id: str) -> None:
        self.plan(plan_id)
        self._ask("PLAN.DELETE", plan_id)

    def delete_action(self, action_id: str) -> None:
        self.action(action_id)
        self._ask("ACTION.DELETE", action_id)

    # --- queries ---

    def plans(self) -> list[PlanLine]:
        lines = map(as_object, self._ask("PLAN.LIST"))
        return [
            PlanLine(
                id=str(line.get("id")),
                name=line.get("name"),
                steps=int(line.get("steps") or 0),
                wants=word_list(line, "wants"),
            )
            for line in lines
        ]

    def plan(self, plan_id: str) -> Mapping[str, Any]:
        found = self._ask("PLAN.GET", plan_id)
        if found is None:
            raise InputError(f"no plan {plan_id} is kept at {self._name}; `agx list` shows what is")
        return as_object(found)

    def actions(self) -> list[ActionLine]:
        lines = map(as_object, self._ask("ACTION.LIST"))
        return [
            ActionLine(id=str(line.get("id")), plan_id=str(line.get("plan_id")), inputs=int(line.get("inputs") or 0))
            for line in lines
        ]

    def action(self, action_id: str) -> Mapping[str, Any]:
        found = self._ask("ACTION.GET", action_id)
        if found is None:
            raise InputError(f"no action {action_id} is kept at {self._name}; `agx action list` shows what is")
        return as_object(found)

    def job(self, job: str) -> PlanJob:
        return plan_job(self._whole(job))

    def jobs(self, *, statuses: Sequence[str], limit: int) -> list[PlanJob]:
        found: list[PlanJob] = []
        for status in statuses or (None,):
            some = self._ask("JOBS.LIST", "LIMIT", str(limit), *(("STATUS", status) if status else ()))
            found += [plan_job(as_object(line)) for line in some]
        return sorted(found, key=lambda one: one.created_at or "", reverse=True)[:limit]

    def result(self, job: str) -> Mapping[str, Any] | None:
        found = self._whole(job).get("result")
        return found if isinstance(found, dict) else None

    def stdout(self, job: str, step: str | None) -> Iterator[bytes]:
        told = self._whole(job)
        result = told.get("result")
        listed = result.get("step_results") if isinstance(result, dict) else None
        steps = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        if len(steps) <= 1 and step is None:
            yield self._ask("GET", f"job:{told.get('job_id')}:stdout") or b""
            return
        names = [str(one.get("id") or one.get("step_number")) for one in steps]
        if step is not None and step not in names:
            raise InputError(f"{job} has no step {step}; known: {', '.join(names) or 'none yet'}")
        chosen = steps[-1 if step is None else names.index(step)]
        if chosen.get("truncated") or chosen.get("stdout_truncated"):
            raise InputError(
                f"step {names[steps.index(chosen)]} said more than comes along; `farro logs` has it, there"
            )
        yield str(chosen.get("stdout") or "").encode("utf-8", "replace")

    def workers(self) -> list[PlanWorker]:
        found = []
        for line in map(as_object, self._ask("WORKERS.LIST")):
            role, host = line.get("role"), line.get("host")
            found.append(
                PlanWorker(
                    id=str(line.get("worker_id") or "(a connection)"),
                    role=role if isinstance(role, str) else DEFAULT_ROLE,
                    alive=line.get("alive") is not False,
                    jobs=word_list(line, "jobs"),
                    tags=word_list(line, "tags"),
                    host=host if isinstance(host, str) else None,
                )
            )
        return found

    def queues(self) -> list[PlanQueue]:
        told = as_object(self._ask("QUEUE.STATS")).get("queues")
        working = [worker.role for worker in self.workers() if worker.alive]
        found = []
        for line in told.values() if isinstance(told, dict) else ():
            counts = {
                str(status): line[status] for status in Status if isinstance(line.get(status), int) and line[status]
            }
            if counts or line.get("role") in working:
                role = str(line.get("role"))
                found.append(PlanQueue(role=role, counts=counts, workers=working.count(role)))
        return found

    # --- cancelling and waiting ---

    def cancel(self, job: str) -> PlanJob:
        self._whole(job)
        self._ask("JOB.CANCEL", job, "agx job cancel")
        return self.job(job)

    def follow(self, job_id: str) -> Iterator[PlanJob]:
        last: tuple[object, ...] | None = None
        with self._listening() as wait:
            while True:
                told = self.job(job_id)
                if (now := (told.status, told.attempt, told.role)) != last:
                    last = now
                    yield told
                if told.ended:
                    return
                wait()

    def ends(self, job_ids: Sequence[str]) -> Iterator[PlanJob]:
        left = dict.fromkeys(job_ids)
        with self._listening() as wait:
            while left:
                for job_id in list(left):
                    told = self.job(job_id)
                    if told.ended:
                        del left[job_id]
                        yield told
                if left:
                    wait()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[Callable[[], None]]:
        """Subscribe to job updates; yield a function that waits for the next one, or for a moment."""
        pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        explained(self._name, lambda: pubsub.subscribe("job:updates"))
        try:
            yield lambda: explained(self._name, lambda: pubsub.get_message(timeout=_LOOK_S))
        finally:
            pubsub.close()

    def _whole(self, job: str) -> Mapping[str, Any]:
        found = self._ask("JOB.GET", job) if is_job_id(job) else None
        if found is None:
            raise UnknownJob(f"no job {job} at {self._name}; `agx jobs` lists what there is, by its whole id")
        return as_object(found)

    def _ask(self, *words: str | bytes) -> Any:
        # Arguments need not be UTF-8; the queue refuses what it cannot read.
        said = [word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape") for word in words]
        return explained(self._name, lambda: self._client.execute_command(*said))


_ENDED = frozenset({Status.SUCCEEDED, Status.KILLED})


def explained(name: str, call: Callable[[], Any]) -> Any:
    """Call the client; turn its exceptions into errors that say who answered what, and what to do."""
    from redis import exceptions

    try:
        return call()
    except exceptions.AuthenticationError:
        raise Refused(f"{name} needs another key; set AGQ_KEY to the queue's `agq.key`") from None
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        if "auth" in str(error).lower():
            raise Refused(f"{name} needs a key; set AGQ_KEY to the queue's `agq.key`") from None
        raise TryAgain(f"no queue answers at {name} ({_short(error)}); is `farro agq` running there?") from None
    except exceptions.ResponseError as error:
        text = _short(error)
        if text.startswith(("NOAUTH", "WRONGPASS")):
            raise Refused(f"{name} needs a key; set AGQ_KEY to the queue's `agq.key`") from None
        raise InputError(f"{name}: {text}") from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def plan_job(line: Mapping[str, Any]) -> PlanJob:
    error = line.get("error")
    error = error if isinstance(error, dict) else {}
    status = str(line.get("status"))
    attempt = line.get("attempt")
    return PlanJob(
        job_id=str(line.get("job_id")),
        status=status,
        role=_optional(line, "role"),
        plan_id=_optional(line, "plan_id"),
        attempt=attempt if isinstance(attempt, int) else 0,
        created_at=_optional(line, "created_at"),
        ended_at=_optional(line, "finalized_at"),
        agent=_optional(line, "agent"),
        error=_optional(error, "message"),
        category=_optional(error, "category"),
        ended=status in _ENDED or (status == Status.FAILED and line.get("finalized_at") is not None),
    )


def _optional(line: Mapping[str, Any], name: str) -> str | None:
    value = line.get(name)
    return value if isinstance(value, str) else None


def word_list(line: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = line.get(name)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def as_object(text: bytes | str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError, TypeError):
        data = None
    if not isinstance(data, dict):
        raise FarroError("the queue did not answer with a JSON object; is it `farro agq`?")
    return data


def as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def as_json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
