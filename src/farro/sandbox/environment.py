"""What steps get of the worker's environment: all of it, or what `runners.environment` names; confined ones no secrets.

A step's own `env` and farro's marks are added where it is started (execution). What a provider's program gets is named
for it alone (providers.environment).

Why confined steps are told no secret: they are kept from the keys of the HTTP front, and a key of agq, of the Redis
server or of the HTTP front in a variable opens the same doors: with a network they could have anything run unconfined.
"""

from __future__ import annotations

from collections.abc import Mapping

from farro.config.engines import AGQ
from farro.config.settings import Settings

_AGW = "AGQ_KEY"  # an agw has its key in it, and need have no config


def of_steps(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """A command of farro among them finds the same jobs, but over agq, which is for workers only."""
    elsewhere = {} if settings.store.startswith(("files", AGQ)) else {"FARRO_STORE": settings.store}
    return {**settings.runners.allowed(environ), **elsewhere}


def of_confined_steps(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The same without what farro knows as secret, but for a variable that `runners.environment` has by its name."""
    from farro.sandbox.redaction import secret_variables  # here: most jobs are not confined

    withheld = {*secret_variables(settings, environ), _AGW} - {*(settings.runners.environment or ())}
    return {name: value for name, value in of_steps(settings, environ).items() if name not in withheld}
