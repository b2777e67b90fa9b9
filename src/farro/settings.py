"""What can be configured: one pure model, with the defaults that the seeds pin.

Reading files and the environment lives in config; what a value does lives where it is used.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from farro.kernel.retry import RetryPolicy

# The six of SPEC-1, and Runner, the built-in role for command plans.
ROLES = ("Manager", "SeniorEngineer", "JuniorEngineer", "Architect", "CodeReviewer", "DocWriter", "Runner")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RetrySettings(_Model):
    """SPEC-1 §9, and the attempt limit of a hop."""

    base_s: float = Field(default=0.25, gt=0)
    multiplier: float = Field(default=1.5, ge=1)
    max_delay_s: float = Field(default=10.0, gt=0)
    max_attempts: int = Field(default=3, ge=1, le=100)

    def policy(self) -> RetryPolicy:
        return RetryPolicy(**self.model_dump())


class WatchdogSettings(_Model):
    stale_after_s: float = Field(default=1800.0, gt=0)
    abandon_after_s: float = Field(default=7200.0, gt=0)
    every_s: float = Field(default=5.0, gt=0)


class ToolSettings(_Model):
    """A tool of plans: a Python callable, or an executable by another name."""

    python: str | None = None  # "pkg.mod:function"
    command: str | None = None


class SecuritySettings(_Model):
    max_job_bytes: int = Field(default=25 << 20, ge=1)
    payload_allowlist: tuple[str, ...] = Field(
        default=(".md", ".txt", ".json", ".patch", ".diff", ".png", ".jpg", ".svg", ".zip"),
        strict=False,
    )
    allow_absolute_paths: bool = False
    require_allowed_paths: bool = False


class RoleSettings(_Model):
    """A role beside the built-in ones. Its policy file is agents/<Role>/AGENTS-ROLE.md."""

    description: str = ""


class Settings(_Model):
    version: str = "1.0.0"
    durability: Literal["power", "process"] = "power"
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    tools: dict[str, ToolSettings] = Field(default_factory=dict)
    retry: RetrySettings = Field(default_factory=RetrySettings)
    watchdog: WatchdogSettings = Field(default_factory=WatchdogSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    providers: dict[str, Any] = Field(default_factory=dict)

    def all_roles(self) -> tuple[str, ...]:
        return (*ROLES, *(role for role in self.roles if role not in ROLES))
