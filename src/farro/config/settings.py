"""Define all settings with their defaults, and the types of their values. docs/configuration.md explains them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from farro.documents.constraints import AnyCase, Argument, Bounds, Matching, Size
from farro.errors import InputError
from farro.jobs.retry import RetryPolicy
from farro.jobs.times import duration_fault, parse_duration
from farro.lazy_dataclass import dataclass, field
from farro.plans.model import AHEAD_BYTES
from farro.roles.names import ROLES as ROLES
from farro.roles.names import RUNNER
from farro.roles.policy import SEMVER
from farro.roles.provider_rules import names_a_secret

Positive = Annotated[float, Bounds(more_than=0)]
Count = Annotated[int, Bounds(at_least=1)]
Cap = Annotated[int, Bounds(at_least=0)]
Amount = Annotated[float, Bounds(at_least=0)]
ExitCode = Annotated[int, Bounds(at_least=0, at_most=255)]
FilledText = Annotated[str, Argument(filled=True)]
ReadPath = Annotated[str, Matching(r"[^\0]*[^\0/][^\0]*", "a path below /")]
HostPort = Annotated[
    str, Matching(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}", "a host with its port, such as index.example:443")
]
Hosts = Annotated[tuple[HostPort, ...], Size(at_most=100)]  # that are reached: index.example:443
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


AGQ = "agq://"  # HOST:PORT of a `farro agq`: for workers and agx, never in a config
AGQ_KEYS = ("AGQ_KEY", "AGQ_SESSION_KEY")  # variables with the key of an agq; the second is AGEniX's name of it


_FACTORY = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*"


@dataclass(frozen=True, eq=False)
class AddressRule:
    """Check an address that holds no user and no password."""

    pattern: str
    forms: str  # for messages
    section: str  # of the config that holds user and password

    def fault(self, value: str, /) -> str | None:
        if re.fullmatch(self.pattern, value):
            return None
        if "@" in value:
            return f"must hold no user and no password: they belong under `{self.section}` (user, password: ${{NAME}})"
        return f'must be "files", {self.forms}'

    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^({self.pattern})$"}


STORE_ADDRESS = AddressRule(
    rf"files|rediss?://[^\s@]+|unix://[^\s@]+|{_FACTORY}",
    "the address of a Redis server (redis://HOST:PORT/DB, rediss://…, unix:///PATH), or a store of another package: "
    "package.module:factory",
    "redis",
)
_BUS_ADDRESS = AddressRule(
    r"files|files:.+|amqps?://[^\s@]+",
    "files:FOLDER, or the address of a RabbitMQ: amqp://HOST:PORT/VHOST, amqps://…",
    "amqp",
)
Address = Annotated[str, STORE_ADDRESS]
BusAddress = Annotated[str, _BUS_ADDRESS]


def is_factory(store: str) -> bool:
    """Return whether `store` names a factory of another package."""
    return re.fullmatch(_FACTORY, store) is not None


@dataclass(frozen=True, kw_only=True)
class RedisSettings:
    """The Redis store, for many machines; `store` holds its address. docs/redis.md."""

    name: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "letters, digits, _ and -")] = "farro"
    user: FilledText | None = None
    password: Secret | None = None  # ${NAME}, never the password itself
    # An agent without a heartbeat for this long is dead. At least two seconds: the heartbeat is every second.
    lease_s: Annotated[float, Bounds(at_least=2, at_most=3600)] = 30.0
    wait_replicas: Annotated[int, Bounds(at_least=0, at_most=100)] = 0  # that acknowledge a write (WAIT)
    wait_s: Positive = 1.0  # the longest wait for them
    shared: FilledText | None = None  # a folder that all machines share, for large outputs
    inline_bytes: Annotated[int, Bounds(at_least=1024, at_most=16 << 20)] = 256 << 10  # of one file of a result
    timeout_s: Positive = 5.0  # of one request to the server
    retry_s: Positive = 30.0  # how long a request is retried while the server is away
    keep_changes: Count = 65536  # entries of the change feed
    keep_audit: Count = 1_000_000  # lines of the common audit log


@dataclass(frozen=True, kw_only=True)
class AmqpSettings:
    """RabbitMQ as the bus of swarms; `bus` holds its address. docs/swarms.md."""

    user: FilledText | None = None
    password: Secret | None = None  # ${NAME}, never the password itself
    quorum: bool = False  # use quorum queues, for a broker with several nodes


ForeignSignals = Literal["refuse", "accept"]


@dataclass(frozen=True, kw_only=True)
class SwarmSettings:
    """The swarms of a root. docs/swarms.md."""

    # Lifecycle signals that the orchestrator did not send. `accept`: they are obeyed, and it takes over the result.
    foreign_signals: ForeignSignals = "refuse"


@dataclass(frozen=True, kw_only=True)
class AgqSettings:
    """The RESP front, `farro agq`. docs/agq.md."""

    bind: HostPort = "127.0.0.1:6380"
    key: Secret | None = None  # ${NAME}: the key that clients send with AUTH; required beyond loopback
    max_connections: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 1000
    worker_ttl_s: Positive = 30.0  # a worker without connection and heartbeat for this long is gone


Allowed = Literal["write", "approve"]  # what an MCP server may do beyond reading


@dataclass(frozen=True, kw_only=True)
class McpSettings:
    """The MCP server, `farro mcp`. docs/mcp.md."""

    allow: tuple[Allowed, ...] = ()  # write: queue, retry, requeue, kill; approve: answer for a person


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """The HTTP front, `farro web`. docs/http.md."""

    bind: HostPort = "127.0.0.1:8420"
    token: Secret | None = (
        None  # ${NAME}: the token of programs; required beyond loopback. None: jobs/.web/token is generated
    )
    hosts: tuple[FilledText, ...] = ()  # host names that it answers to, besides addresses and localhost
    read_only: bool = False  # refuse every change
    secure_cookie: bool = False  # behind an https proxy: browsers send the session cookie over https only


UNCAPPED = RUNNER  # command plans come by the thousand: no cap unless configured


@dataclass(frozen=True, kw_only=True)
class WatchdogSettings:
    """When an agent counts as hung, and how often the watchdog checks."""

    stale_after_s: Positive = 1800.0
    abandon_after_s: Positive = 7200.0
    every_s: Positive = 5.0


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """A tool of plans: a Python callable, or an executable by another name."""

    python: str | None = None  # "pkg.mod:function"
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Limits and guardrails of jobs (SPEC-1 §7)."""

    max_job_bytes: Count = 25 << 20
    payload_allowlist: tuple[Ending, ...] = (".md", ".txt", ".json", ".patch", ".diff", ".png", ".jpg", ".svg", ".zip")
    allow_absolute_paths: bool = False
    require_allowed_paths: bool = False
    sandbox: Literal["auto", "A", "B", "none"] = "auto"  # the best that works here, or the one named
    require_sandbox: bool = False  # jobs with allowed_paths are not run without one
    network: bool | Hosts = False  # of steps with allowed_paths
    max_processes: Annotated[int, Bounds(at_least=1, at_most=1_000_000)] = 512  # of such a step, at once
    max_memory_bytes: Annotated[int, Bounds(at_least=64 << 20)] | None = None  # of such a step
    min_free_bytes: Annotated[int, Bounds(at_least=0)] = 256 << 20  # such a step is ended when the disk has less


@dataclass(frozen=True, kw_only=True)
class PriceSettings:
    """The price of a model without a known price, in US dollars per million tokens."""

    input_usd: Amount
    output_usd: Amount


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """A provider, which answers agent prompts, and how to reach it."""

    kind: FilledText | None = None  # a built-in one, such as openai, cli or acp, or an installed one; None: as its name
    model: FilledText | None = None  # of roles that name none
    account: FilledText | None = None  # what its limits apply to: a key or a login. None: as its name
    timeout_s: Positive | None = None  # of one call; None: as `timeouts` says
    max_output_tokens: Count = 8192
    prices: dict[str, PriceSettings] = field(default_factory=dict)  # by model
    call_usd: Positive | None = None  # the most that one call may cost, where it cannot be computed
    budget_usd: Positive | None = None  # of its account, per UTC day
    # Of an installed provider, handed on as they are; a text that is one ${NAME} is a Secret.
    options: dict[str, Any] = field(default_factory=dict)
    # over HTTP, and of a program whose requests go through the gateway
    api_key: Secret | None = None  # ${NAME}, never the key itself
    base_url: FilledText | None = None
    stream: bool = True
    # cli
    program: FilledText | None = None  # a coding agent that farro or a package knows, such as claude; None: any command
    command: Command | None = None  # of a known program: replaces the first words of its command line
    login: Secret | None = None  # ${NAME}: a subscription's login, instead of a key
    idle_timeout_s: Positive | None = None  # without progress of a known program; None: as `timeouts` says
    environment: tuple[FilledText, ...] = ()  # names of variables that it gets besides PATH, HOME and the locale
    workspace: Literal["temp", "root", "worktree"] = "temp"  # where it works
    read_paths: tuple[ReadPath, ...] = ()  # that it may read besides the system, its workspace and its installation
    network: bool | Hosts = False  # all of it, or these hosts
    fatal_exit_codes: tuple[ExitCode, ...] = ()  # exit codes that are not retried
    answer_field: FilledText | None = None  # the field of its JSON output that holds the answer
    cost_field: FilledText | None = None  # the field with the cost in US dollars
    # acp
    permissions: Literal["allow", "inbox", "refuse"] = "allow"  # what its agent asks for, and may do inside its sandbox
    permission_timeout_s: Positive = 900.0  # without a person's answer: then it is refused
    # scripted
    file: FilledText | None = None

    @property
    def uses_gateway(self) -> bool:
        """Return whether the requests of a known program go through the model gateway."""
        return self.program is not None and (self.api_key, self.login, self.base_url) != (None, None, None)


@dataclass(frozen=True, kw_only=True)
class FallbackSettings:
    """The provider to ask when the one before it failed."""

    provider: FilledText
    model: FilledText | None = None


@dataclass(frozen=True, kw_only=True)
class RoleSettings:
    """A role: one of the built-in ones, or another. Its policy file is agents/<Role>/AGENTS-ROLE.md."""

    description: str = ""
    provider: FilledText | None = None
    model: FilledText | None = None
    fallbacks: tuple[FallbackSettings, ...] = ()
    timeout_s: Positive | None = None  # of one call; None: as the provider says
    max_output_tokens: Count | None = None  # None: as the provider says
    repairs: Annotated[int, Bounds(at_least=0, at_most=10)] = 2  # calls to repair an answer of the wrong form
    read_only: bool = False  # its programs may write nowhere, even if the prompt allows it
    read_paths: tuple[ReadPath, ...] = ()  # that its programs may read besides those of their provider
    network: bool | Hosts = False  # that its programs may use
    budget_usd: Positive | None = None  # per UTC day
    fast_path: bool = False  # a passing result goes straight to the next role, without the manager
    on_success: Hooks = ()  # commands that the manager runs when it decides about a success of this role
    on_failure: Hooks = ()  # commands that the manager runs when it decides about a failure


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """Limits on the cost of agent calls, in US dollars. Those of a role are under `roles`."""

    job_usd: Positive | None = None
    day_usd: Positive | None = None  # UTC


@dataclass(frozen=True, kw_only=True)
class TimeoutSettings:
    """Timeouts of one provider call."""

    http_seconds: Positive = 120.0
    cli_seconds: Positive = 3600.0
    cli_idle_seconds: Positive = 900.0  # without progress of a program


@dataclass(frozen=True, kw_only=True)
class RunnersSettings:
    """How jobs are executed: Air-Executor's keys with its bounds, and limits of process runners."""

    kind: Literal["inline", "process"] = "inline"  # inside the worker, or one child process a job
    memory_bytes: Annotated[int, Bounds(at_least=256 << 20)] | None = None  # address space of each process
    cpu_s: Annotated[int, Bounds(at_least=1, at_most=30 * 86400)] | None = None  # of each process
    file_bytes: Annotated[int, Bounds(at_least=1 << 20)] | None = None  # of each file
    poll_interval: Annotated[int, Bounds(at_least=1, at_most=60)] = 5  # seconds
    task_timeout: Annotated[int, Bounds(at_least=60, at_most=7200)] = 1800  # seconds; of a step that names none
    max_concurrent_runners: Annotated[int, Bounds(at_least=1, at_most=50)] = 10
    ahead_bytes: Annotated[int, Bounds(at_least=1 << 16)] = AHEAD_BYTES  # a step with more output is read while it runs
    environment: tuple[FilledText, ...] | None = None  # names of variables that steps get; None: all
    base_path: FilledText = ".air-executor"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], AnyCase()] = "info"
    log_format: Annotated[Literal["json", "text"], AnyCase()] | None = None  # None: JSON, and text at a terminal

    def allowed(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that steps get: the listed names, prefixes such as `LC_*`, and PATH."""
        if self.environment is None:
            return dict(environ)
        whole = {name for name in self.environment if not name.endswith("*")} | {"PATH"}
        beginnings = tuple(name[:-1] for name in self.environment if name.endswith("*"))
        return {name: value for name, value in environ.items() if name in whole or name.startswith(beginnings)}


@dataclass(frozen=True, kw_only=True)
class CapacitySettings:
    """Caps on queued jobs (SPEC-1 §10), checked when a job is enqueued."""

    role_cap: Cap = 200
    total_cap: Cap = 1000
    roles: dict[str, Cap | None] = field(default_factory=dict)  # None: no cap
    force: tuple[FilledText, ...] = ()  # users who may enqueue beyond a cap; "*" means every user
    pause: Share = 0.8  # auto-plan pauses when a role reaches this share of its cap
    resume: Share = 0.6  # and resumes when no role has more than this


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """What the manager does besides routing."""

    auto_plan: bool = False  # create jobs from an Architect's drafts and from tasks that have not been started
    auto_plan_limit: Annotated[int, Bounds(at_least=0, at_most=10_000)] = 50  # jobs in the life of a manager process
    hook_timeout_s: Positive = 60.0  # of one command of on_success or on_failure


@dataclass(frozen=True, kw_only=True)
class AgxSettings:
    """The planner, `farro agx`, which turns words into steps. docs/agx.md."""

    provider: FilledText | None = None  # None: the Architect's, else the first of `providers`
    model: FilledText | None = None  # None: as the provider says
    budget_usd: Positive | None = None  # per UTC day


@dataclass(frozen=True, kw_only=True)
class RoutingSettings:
    """What workers may do while the manager is away."""

    degraded_bypass: bool = False  # `farro worker --degraded-bypass` is permitted


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """SPEC-1 §8."""

    mode: Literal["buffered", "strict"] = "buffered"
    max_bytes: Count = 50 << 20  # of one file before it is rotated
    keep: Count = 10  # files
    quota_bytes: Count = 512 << 20  # of all of them


@dataclass(frozen=True, kw_only=True)
class PruneSettings:
    """How long finished jobs are kept, by status. None: for ever."""

    keep_succeeded: Lasting | None = None
    keep_failed: Lasting | None = None
    keep_killed: Lasting | None = None

    def keep_s(self, status: str) -> float | None:
        """Return how long a job of that status is kept; None: it is never pruned automatically."""
        kept = {"succeeded": self.keep_succeeded, "failed": self.keep_failed, "killed": self.keep_killed}[status]
        return None if kept is None else parse_duration(kept)


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """When finished jobs leave their folders."""

    archive_after: Lasting | None = None  # the manager archives jobs that ended this long ago; None: never by itself

    def archive_after_s(self) -> float | None:
        return None if self.archive_after is None else parse_duration(self.archive_after)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole config of a root."""

    version: Version = "1.0.0"
    strict: bool = True  # unknown keys are errors; else warnings
    store: Address = "files"  # or redis://HOST:PORT/DB, or package.module:factory
    bus: BusAddress = "files"  # or amqp://HOST:PORT/VHOST: the bus of swarms
    durability: Literal["power", "process"] = "power"  # of the file store
    strict_start: bool = False  # daemons start only when the quick checks of doctor pass without warnings
    # SPEC-1 §5; true has no effect: docs/decisions/a-root-is-one-filesystem.md
    allow_cross_volume: bool = False
    roles: dict[str, RoleSettings] = field(default_factory=dict)
    tools: dict[str, ToolSettings] = field(default_factory=dict)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    runners: RunnersSettings = field(default_factory=RunnersSettings)
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    prune: PruneSettings = field(default_factory=PruneSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    providers: dict[str, ProviderSettings] = field(default_factory=dict)
    budgets: BudgetSettings = field(default_factory=BudgetSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    manager: ManagerSettings = field(default_factory=ManagerSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    agq: AgqSettings = field(default_factory=AgqSettings)
    agx: AgxSettings = field(default_factory=AgxSettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    swarm: SwarmSettings = field(default_factory=SwarmSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    web: WebSettings = field(default_factory=WebSettings)

    def all_roles(self) -> tuple[str, ...]:
        return (*ROLES, *(role for role in self.roles if role not in ROLES))

    def cap_of(self, role: str) -> int | None:
        """Return the cap of a role; None: no cap."""
        if role in self.capacity.roles:
            return self.capacity.roles[role]
        return None if role == UNCAPPED else self.capacity.role_cap

    def may_force(self, user: str) -> bool:
        """Return whether that user may enqueue beyond a cap."""
        return "*" in self.capacity.force or user in self.capacity.force

    def provider_of(self, role: str) -> str | None:
        """Return the provider of a role: the one it names, or the only one."""
        named = self.roles[role].provider if role in self.roles else None
        return named or (next(iter(self.providers)) if len(self.providers) == 1 else None)

    def account_of(self, provider: str) -> str:
        """Return the account of a provider: the one it names, or its own name."""
        own = self.providers.get(provider)
        return provider if own is None or own.account is None else own.account

    def call_timeout_s(self, provider: str, role: RoleSettings | None = None) -> float:
        """Return the timeout of one call: the role's, else the provider's, else that of programs or of HTTP."""
        own = self.providers[provider]
        is_program = (own.kind or provider) in ("cli", "acp")
        usual_s = self.timeouts.cli_seconds if is_program else self.timeouts.http_seconds
        return (role and role.timeout_s) or own.timeout_s or usual_s

    def idle_timeout_s(self, provider: str) -> float:
        """Return how long a program of that provider may run without progress."""
        return self.providers[provider].idle_timeout_s or self.timeouts.cli_idle_seconds

    def secret_variables(self) -> tuple[str, ...]:
        """Return the names of variables that hold secrets: those that the config declares, and those passed to programs
        under a name that looks secret."""
        found: dict[str, None] = {}
        doors = (self.redis.password, self.agq.key, self.amqp.password, self.web.token)
        found.update((secret.name, None) for secret in doors if secret is not None)
        for provider in self.providers.values():
            found.update(
                (secret.name, None) for secret in _secrets((provider.api_key, provider.login, provider.options))
            )
            found.update((name, None) for name in provider.environment if names_a_secret(name))
        return tuple(found)


def _secrets(value: Any) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, dict | list | tuple):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _secrets(member)
