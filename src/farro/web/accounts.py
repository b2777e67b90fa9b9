"""List the paused accounts of providers, and resume one."""

from __future__ import annotations

from typing import Any

from farro.errors import InputError
from farro.lazy_dataclass import dataclass
from farro.queue import accounts
from farro.store.accounts import PauseKind
from farro.web.errors import HttpError
from farro.web.request_handling import ApiRequest, NoFields, Routes, WebState

routes = Routes("overview")


@dataclass(frozen=True, kw_only=True)
class AccountData:
    account: str
    kind: PauseKind
    reason: str
    since: str
    until: str | None  # None: a person resumes it
    jobs: int
    fix: str  # the command that resumes it


@dataclass(frozen=True, kw_only=True)
class AccountsResponse:
    accounts: tuple[AccountData, ...]


@routes.get("/api/accounts", "The paused accounts of providers.", AccountsResponse, cache_s=2.0)
def list_accounts(state: WebState, request: ApiRequest) -> Any:
    return {"accounts": [one.to_json() for one in accounts.paused_accounts(state.store)]}


@routes.post(
    "/api/accounts/{account:path}/resume",
    "Call a paused account again, and start its jobs.",
    accounts.ResumedAccount,
    body=NoFields,
)
def resume_account(state: WebState, request: ApiRequest) -> Any:
    try:
        account = accounts.named_account(state.store, state.settings, request.path["account"])
    except InputError as error:
        raise HttpError(404, "unknown_account", str(error)) from None
    return accounts.resume(state.store, account, by=state.person, clock=state.clock)
