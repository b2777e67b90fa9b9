"""What every `agx` command works with: its root or queue, the user's draft, and whether it answers in JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farro.agx.cli.group import META
from farro.cli import terminal
from farro.cli.options import ROOT_HELP, application, operator_name, policy, read_root, root_option
from farro.config import reader
from farro.config.settings import Settings
from farro.errors import InputError, NotARoot
from farro.lazy_dataclass import dataclass
from farro.log.structured import grave_only

if TYPE_CHECKING:
    from farro.agx.client import LocalPlanClient
    from farro.agx.drafting import Drafts
    from farro.agx.remote_client import RemotePlanClient

F = TypeVar("F", bound=Callable[..., Any])

REMOTE = "agq://"
STORE_HELP = "Another queue: redis://HOST:PORT, or agq://HOST:PORT (key in AGQ_KEY)."


def common(command: F) -> F:
    """Add `--root`, `--store` and `--json`; the command gets them as `session`."""
    options = [
        root_option(ROOT_HELP),
        click.option("--store", metavar="ADDRESS", help=STORE_HELP),
        click.option(
            "--json/--text", "as_json", default=None, help="JSON, also at a terminal; or text, also in a pipe."
        ),
    ]

    def called(*args: Any, root: str | None, store: str | None, as_json: bool | None, **rest: Any) -> Any:
        context = click.get_current_context()
        told = context.meta.get(META, {})
        session = AgxSession(
            root_given=root or told.get("root"),
            store=_checked(store or told.get("store") or _of_environment()),
            as_json=_answer_form(as_json if as_json is not None else told.get("as_json")),
        )
        context.call_on_close(session.close)
        return command(*args, session=session, **rest)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(options):
        called = option(called)
    return called  # type: ignore[return-value]


def _answer_form(asked: bool | None) -> bool:
    return not terminal.at_terminal() if asked is None else asked


@dataclass
class AgxSession:
    """Open the root, the draft and the client of one command, each when it is first used."""

    root_given: str | None
    store: str | None
    as_json: bool

    @classmethod
    def of_options(cls, given: Sequence[str]) -> AgxSession:
        """Read the options given to `agx` itself, each followed by its value."""
        named = dict(zip(given[::2], given[1::2], strict=False))
        return cls(root_given=named.get("--root"), store=named.get("--store") or _of_environment(), as_json=False)

    @property
    def remote(self) -> bool:
        return self.store is not None and self.store.startswith(REMOTE)

    def worker(self, role: str = "Runner") -> str:
        """Return the command that starts a worker for jobs submitted here."""
        words = [*(["agw"] if self.remote else ["farro", "worker"]), *(["--store", self.store] if self.store else [])]
        return " ".join([*words, *(["--role", role] if role != "Runner" else [])])

    @cached_property
    def _read(self) -> tuple[str | None, Settings]:
        """Find the root and read its config. Without a root the user's own is made by the first submission."""
        try:
            if self.remote:  # the config names the planner's provider and the key; the queue is given
                root = reader.find_root(self.root_given, own=True)
                settings = reader.load(root, warn=terminal.complain)
                application().redact_secrets(settings)
                return root, settings
            root, settings = read_root(self.root_given)
        except NotARoot:
            if self.root_given or os.environ.get("FARRO_ROOT"):
                raise
            return None, Settings()
        return root, reader.with_store(settings, self.store)

    @property
    def settings(self) -> Settings:
        return self._read[1]

    @property
    def root(self) -> str:
        """The folder of the root, also of one that is not made yet."""
        return self._read[0] or reader.own_root()

    @cached_property
    def drafts(self) -> Drafts:
        from farro.agx.drafting import Drafts

        path = os.environ.get("AGX_PLAN_PATH")  # AGEniX's variable
        return Drafts(state_folder(), self.store or self.root, path=os.path.abspath(path) if path else None)

    @cached_property
    def client(self) -> LocalPlanClient | RemotePlanClient:
        """Open the client that submits plans. Makes the user's own root where there is none."""
        app = application()
        if self.remote:
            assert self.store is not None
            return app.remote_plans(self.store, self.settings)
        if self._read[0] is None:
            _, settings = read_root(None, make=True)
            self.__dict__["_read"] = (reader.own_root(), reader.with_store(settings, self.store))
        root, settings = self.root, self.settings
        store = app.open_store(root, settings, log=grave_only(sys.stderr), actor=operator_name(), brief=True)
        return app.local_plans(store, settings, policy=policy(store, settings), by=operator_name())

    def close(self) -> None:
        client = self.__dict__.pop("client", None)
        if client is not None:
            client.close()


def state_folder() -> str:
    """Return the folder of this user's drafts and history; it holds nothing of a job."""
    return f"{reader.own_root()}/agx"


def _of_environment() -> str | None:
    """Return FARRO_STORE where it names a queue. Other stores are handled for every command alike."""
    named = os.environ.get("FARRO_STORE", "")
    return named if named.startswith(REMOTE) else None


def _checked(address: str | None) -> str | None:
    if address is None or address.startswith(REMOTE):
        return address
    from farro.config.settings import STORE_ADDRESS

    fault = STORE_ADDRESS.fault(address)
    if fault is not None:
        raise InputError(f"--store: {fault}; or agq://HOST:PORT, a RESP queue")
    return address
