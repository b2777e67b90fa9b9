"""Where an `agx` command works: its root or queue, the person's draft there, and how it answers. Shared by all.

Which verbs there are lives in agx and the files beside it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farro.agx.cli.group import META
from farro.cli import terminal
from farro.cli.options import ROOT_HELP, application, operator_name, read_root, root_option
from farro.config import reader
from farro.config.settings import Settings
from farro.errors import InputError, NotARoot
from farro.lazy_dataclass import dataclass
from farro.log.structured import grave_only
from farro.queue import admission
from farro.queue.agent_rules import contract_of

if TYPE_CHECKING:
    from farro.agx.client import Desk
    from farro.agx.draft_files import Drafts

F = TypeVar("F", bound=Callable[..., Any])

REMOTE = "agq://"
STORE_HELP = "Another place: redis://HOST:PORT, or agq://HOST:PORT (key in AGQ_KEY)."


def common(command: F) -> F:
    """`--root`, `--store` and `--json`, on every command: as `place: Place`."""
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
        place = Place(
            root_given=root or told.get("root"),
            store=_checked(store or told.get("store") or _of_environment()),
            as_json=_answer_form(as_json if as_json is not None else told.get("as_json")),
        )
        context.call_on_close(place.close)
        return command(*args, place=place, **rest)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(options):
        called = option(called)
    return called  # type: ignore[return-value]


def _answer_form(asked: bool | None) -> bool:
    return not terminal.at_terminal() if asked is None else asked


@dataclass
class Place:
    """One command's place; what it does not need is not opened."""

    root_given: str | None
    store: str | None
    as_json: bool

    @classmethod
    def of_options(cls, given: Sequence[str]) -> Place:
        """As the options of the program say, each followed by its value."""
        named = dict(zip(given[::2], given[1::2], strict=False))
        return cls(root_given=named.get("--root"), store=named.get("--store") or _of_environment(), as_json=False)

    @property
    def remote(self) -> bool:
        return self.store is not None and self.store.startswith(REMOTE)

    def worker(self, role: str = "Runner") -> str:
        """The command that starts a worker for what is handed in here."""
        words = [*(["agw"] if self.remote else ["farro", "worker"]), *(["--store", self.store] if self.store else [])]
        return " ".join([*words, *(["--role", role] if role != "Runner" else [])])

    @cached_property
    def _read(self) -> tuple[str | None, Settings]:
        """Where no root is, the person's own will be made once something is handed in."""
        try:
            if self.remote:  # the config says who plans, and the key; where the jobs lie is known
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
        """The folder of the root, also of the one that is not made yet."""
        return self._read[0] or reader.own_root()

    @cached_property
    def drafts(self) -> Drafts:
        from farro.agx.draft_files import Drafts

        return Drafts(state_folder(), self.store or self.root)

    @cached_property
    def desk(self) -> Desk:
        """Where plans are handed in; made where there is no root yet."""
        app = application()
        if self.remote:
            assert self.store is not None
            return app.remote_plans(self.store, self.settings)
        if self._read[0] is None:
            _, settings = read_root(None, make=True)
            self.__dict__["_read"] = (reader.own_root(), reader.with_store(settings, self.store))
        root, settings = self.root, self.settings
        store = app.open_store(root, settings, log=grave_only(sys.stderr), actor=operator_name(), brief=True)
        contract = contract_of(root, settings)
        return app.local_plans(store, settings, contract=contract, by=operator_name(), user=admission.current_user())

    def close(self) -> None:
        desk = self.__dict__.pop("desk", None)
        if desk is not None:
            desk.close()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """An empty folder for the files of a call."""
        from farro.host import fs, trees

        folder = fs.temporary(f"{self.root}/jobs/.staging")
        fs.mkdir(folder)
        try:
            fs.mkdir(f"{folder}/calls")
            yield f"{folder}/calls"
        finally:
            trees.remove_tree(folder)


def state_folder() -> str:
    """Of this person's drafts and history; nothing of a job is in it."""
    return f"{reader.own_root()}/agx"


def _of_environment() -> str | None:
    """FARRO_STORE, where it is a queue; another store is chosen for every command alike."""
    named = os.environ.get("FARRO_STORE", "")
    return named if named.startswith(REMOTE) else None


def _checked(address: str | None) -> str | None:
    if address is None or address.startswith(REMOTE):
        return address
    from farro.config.engines import StoreAddress

    fault = StoreAddress().fault(address)
    if fault is not None:
        raise InputError(f"--store: {fault}; or agq://HOST:PORT, a RESP queue")
    return address
