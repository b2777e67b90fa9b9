"""The part of the worker's environment that steps get: all, or what `runners.environment` names; confined steps get no
secrets.

Confined steps cannot read the key files of the HTTP API. A key of agq, of the Redis server or of the HTTP API in a
variable gives the same access: over a network they could then run anything unconfined.
"""

from __future__ import annotations

from collections.abc import Mapping

from farro.config.settings import AGQ, AGQ_KEYS, Settings


def of_steps(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a step. FARRO_STORE lets farro's commands find the same jobs, except over agq, which only
    workers may use."""
    elsewhere = {} if settings.store.startswith(("files", AGQ)) else {"FARRO_STORE": settings.store}
    return {**settings.runners.allowed(environ), **elsewhere}


def of_confined_steps(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Like `of_steps`, without secrets, except variables that `runners.environment` names."""
    from farro.sandbox.redaction import secret_variables  # here: most jobs are not confined

    withheld = {*secret_variables(settings, environ), *AGQ_KEYS} - {*(settings.runners.environment or ())}
    return {name: value for name, value in of_steps(settings, environ).items() if name not in withheld}
