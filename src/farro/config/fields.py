"""Types of config values: bounded numbers, durations, file extensions, secrets by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from farro.documents.constraints import Argument, Bounds, Matching, Size
from farro.errors import InputError
from farro.jobs.times import duration_fault
from farro.lazy_dataclass import dataclass
from farro.roles.policy import SEMVER

Positive = Annotated[float, Bounds(more_than=0)]
Count = Annotated[int, Bounds(at_least=1)]
Cap = Annotated[int, Bounds(at_least=0)]
Amount = Annotated[float, Bounds(at_least=0)]
ExitCode = Annotated[int, Bounds(at_least=0, at_most=255)]
FilledText = Annotated[str, Argument(filled=True)]
Command = Annotated[tuple[FilledText, ...], Size(at_least=1)]
Hooks = Annotated[tuple[Command, ...], Size(at_most=20)]
Share = Annotated[float, Bounds(more_than=0, at_most=1)]


@dataclass(frozen=True, eq=False)
class Duration:
    """A duration such as 7d, 12h or 1h30m."""

    def fault(self, value: str, /) -> str | None:
        return duration_fault(value)

    def schema(self) -> dict[str, Any]:
        return {"pattern": r"^\s*[0-9][0-9.wdhmsWDHMS]*\s*$"}


Lasting = Annotated[str, Duration()]
Ending = Annotated[str, Matching(r"\.[A-Za-z0-9][A-Za-z0-9._-]{0,31}", "a file's ending such as .md")]
Version = Annotated[str, Matching(SEMVER, "a version such as 1.0.0 (semver)")]


@dataclass(frozen=True, slots=True)
class Secret:
    """The name of the environment variable that holds a secret. The value is never part of the settings: it is read
    when it is used, so that nothing can print it, and commands that do not need it run without it."""

    name: str

    @classmethod
    def of_text(cls, text: str) -> Secret:
        found = re.fullmatch(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", text)
        if found is None:
            raise ValueError(
                "must be a variable of the environment, ${NAME}, and nothing else: no secret is written into a config; "
                "set the variable where workers are started"
            )
        return cls(found[1])

    @staticmethod
    def schema() -> dict[str, Any]:
        return {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"}

    def reveal(self, environ: Mapping[str, str], wanted_by: str = "the config") -> str:
        """Return the value of the variable."""
        value = environ.get(self.name, "")
        if not value.strip():
            what = "is empty" if self.name in environ else "is not set"
            raise InputError(f"the variable {self.name} {what}, and {wanted_by} needs it; set it and start again")
        return value.strip()  # a trailing line break, as from a file, would break an HTTP header

    def __str__(self) -> str:
        return f"${{{self.name}}}"
