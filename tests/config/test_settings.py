"""Read settings from a config, and compare them with docs/configuration.md. tests/flows checks files and exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.config.reader import contract_faults, secrets, settings_of
from farro.config.settings import RoleSettings, RunnersSettings, Secret, Settings
from farro.documents import Document, parse_json, parse_yaml
from farro.errors import BadDocument, InputError
from support import ROOT

DOCUMENT = Path(ROOT, "docs", "configuration.md")


def read(data: Any, environ: dict[str, str] | None = None) -> Settings:
    return settings_of(Document(data, "c"), environ or {}, pytest.fail)


def refused(data: Any, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        read(data, environ)
    return str(caught.value).split("\n")


# --- sections


def test_a_role_has_the_common_cap_unless_it_sets_its_own_and_runner_has_none() -> None:
    assert (read({}).cap_of("Architect"), read({}).cap_of("Runner")) == (200, None)
    settings = read({"roles": {"Packer": {}}, "capacity": {"role_cap": 7, "roles": {"Packer": None, "Runner": 3}}})
    assert [settings.cap_of(role) for role in ("Architect", "Packer", "Runner")] == [7, None, 3]
    assert settings.capacity.total_cap == 1000


def test_only_named_users_may_force_and_a_star_names_all() -> None:
    assert not read({}).may_force("ann")
    assert read({"capacity": {"force": ["ann"]}}).may_force("ann")
    assert not read({"capacity": {"force": ["ann"]}}).may_force("bob")
    assert read({"capacity": {"force": ["*"]}}).may_force("bob")


def test_finished_jobs_are_kept_for_good_unless_a_duration_is_named() -> None:
    settings = read({"prune": {"keep_succeeded": "7d", "keep_failed": "1h30m"}})
    assert settings.prune.keep_s("succeeded") == 7 * 86_400
    assert settings.prune.keep_s("failed") == 5400
    assert settings.prune.keep_s("killed") is None


def test_every_secret_of_a_section_stays_a_name_and_is_known_as_one() -> None:
    """This holds for an unset variable, too: commands that do not need it still run."""
    found = [
        (section, key)
        for section, of in typing.get_type_hints(Settings).items()
        if dataclasses.is_dataclass(of)
        for key, hint in typing.get_type_hints(of).items()
        if Secret in typing.get_args(hint)
    ]
    assert ("web", "token") in found
    for section, key in found:
        settings = read({section: {key: "${NOWHERE}"}})
        assert getattr(getattr(settings, section), key) == Secret("NOWHERE")
        assert settings.secret_variables() == ("NOWHERE",)


def test_air_executors_own_values_load_as_they_are() -> None:
    text = b"""runners:
  poll_interval: 5
  task_timeout: 1800
  max_concurrent_runners: 10
  base_path: .air-executor
  log_level: INFO
  log_format: json
"""
    runners = settings_of(parse_yaml(text, source="c"), {}, pytest.fail).runners
    assert (runners.log_level, runners.log_format, runners.base_path) == ("info", "json", ".air-executor")


def test_the_defaults_of_the_runners_are_those_of_air_executor() -> None:
    runners = read({}).runners
    assert (runners.poll_interval, runners.task_timeout, runners.max_concurrent_runners) == (5, 1800, 10)
    assert read({"runners": {"max_concurrent_runners": 50}}).runners.max_concurrent_runners == 50


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ({"runners": {"poll_interval": 0}}, ["runners.poll_interval: must be at least 1, not 0"]),
        ({"runners": {"cpu_s": 0}}, ["runners.cpu_s: must be at least 1, not 0"]),
        ({"runners": {"memory_bytes": 1}}, ["runners.memory_bytes: must be at least 268435456, not 1"]),
        ({"runners": {"file_bytes": 1}}, ["runners.file_bytes: must be at least 1048576, not 1"]),
        ({"runners": {"poll_interval": 61}}, ["runners.poll_interval: must be at most 60, not 61"]),
        ({"runners": {"task_timeout": 59}}, ["runners.task_timeout: must be at least 60, not 59"]),
        ({"runners": {"task_timeout": 7201}}, ["runners.task_timeout: must be at most 7200, not 7201"]),
        (
            {"runners": {"max_concurrent_runners": 0}},
            ["runners.max_concurrent_runners: must be at least 1, not 0"],
        ),
        (
            {"runners": {"max_concurrent_runners": 51}},
            ["runners.max_concurrent_runners: must be at most 50, not 51"],
        ),
        (
            {"runners": {"max_concurrent_runners": True}},
            ["runners.max_concurrent_runners: must be a whole number, not true"],
        ),
        ({"runners": {"base_path": ""}}, ["runners.base_path: must not be empty"]),
        (
            {"runners": {"log_level": "loud"}},
            ["runners.log_level: must be 'debug', 'info', 'warning' or 'error', not another word"],
        ),
        ({"runners": {"log_format": "xml"}}, ["runners.log_format: must be 'json' or 'text', not another word"]),
        ({"capacity": {"role_cap": -1}}, ["capacity.role_cap: must be at least 0, not -1"]),
        ({"capacity": {"roles": {"Runner": "5"}}}, ["capacity.roles.Runner: must be a whole number, not text"]),
        (
            {"capacity": {"roles": {"Enginer": 5}}, "roles": {"Packer": {}}},
            [
                "capacity.roles.Enginer: is not a role here; known: Manager, SeniorEngineer, JuniorEngineer, "
                "Architect, CodeReviewer, DocWriter, Runner, Packer. A new one is declared under `roles`"
            ],
        ),
        ({"capacity": {"force": "ann"}}, ["capacity.force: must be a list, not text"]),
        ({"audit": {"mode": "loose"}}, ["audit.mode: must be 'buffered' or 'strict', not another word"]),
        ({"audit": {"keep": 0}}, ["audit.keep: must be at least 1, not 0"]),
        (
            {"prune": {"keep_failed": "7 days"}},
            [
                "prune.keep_failed: is not a duration such as 90s, 10m, 2h, 1d, 1w or 1h30m; "
                "the units are w, d, h, m and s"
            ],
        ),
        ({"prune": {"keep_failed": 7}}, ["prune.keep_failed: must be text, not the number 7"]),
        ({"retry": {"base_s": float("inf")}}, ["retry.base_s: must be a finite number"]),
        ({"strict": "no"}, ["strict: must be true or false, not text"]),
    ],
)
def test_a_wrong_value_is_refused_with_the_valid_values(data: Any, problems: list[str]) -> None:
    assert refused(data) == [f"c: {problem}" for problem in problems]


# --- ${VAR}


def test_variables_expand_in_every_text_value_and_in_no_key() -> None:
    environ = {"BIN": "/opt/bin", "USER": "ann", "EMPTY": ""}
    settings = read(
        {
            "tools": {"${BIN}": {"command": "${BIN}/say-${USER}${EMPTY}"}, "b": {"command": "$BIN $$ $${BIN} $"}},
            "capacity": {"force": ["${USER}"]},
            "providers": {"cli": {"command": ["run", "--as=${USER}"]}},
        },
        environ,
    )
    assert settings.tools["${BIN}"].command == "/opt/bin/say-ann"
    assert settings.tools["b"].command == "$BIN $$ ${BIN} $"
    assert settings.capacity.force == ("ann",)
    assert settings.providers["cli"].command == ("run", "--as=ann")


def test_the_value_of_a_variable_is_not_expanded_again() -> None:
    settings = read({"tools": {"a": {"command": "${A}"}}}, {"A": "${B}", "B": "never"})
    assert settings.tools["a"].command == "${B}"


def test_all_missing_or_malformed_variables_are_reported_with_their_places() -> None:
    text = b"""{"tools": {"a": {"command": "${NOPE}/${NEITHER}"}},
 "runners": {"base_path": "${NOPE}"},
 "version": "${not-a-name}", "audit": {"mode": "${"}}"""
    with pytest.raises(BadDocument) as caught:
        settings_of(parse_json(text, source="c"), {}, pytest.fail)
    missing = "the environment has no variable {0}; set it, or write $${{{0}}} for the text itself"
    malformed = "`${` begins a variable, ${NAME}; write $${ for these characters themselves"
    assert str(caught.value).split("\n") == [
        f"c:1:29: tools.a.command: {missing.format('NOPE')}",
        f"c:1:29: tools.a.command: {missing.format('NEITHER')}",
        f"c:2:27: runners.base_path: {missing.format('NOPE')}",
        f"c:3:13: version: {malformed}",
        f"c:3:48: audit.mode: {malformed}",
    ]


def test_a_variable_that_is_no_text_is_refused() -> None:
    assert refused({"version": "${RAW}"}, {"RAW": "\udcff"}) == [
        "c: version: the variable RAW holds bytes that are not UTF-8"
    ]


SECRET = "hunter2-9d"


@pytest.mark.parametrize(
    "data",
    [
        {"durability": "${S}"},
        {"strict": "${S}"},
        {"retry": {"max_attempts": "${S}"}},
        {"retry": {"base_s": "${S}"}},
        {"retry": "${S}"},
        {"runners": {"log_level": "${S}", "base_path": "${S}\0"}},
        {"prune": {"keep_failed": "${S}"}},
        {"capacity": {"force": "${S}", "roles": {"Runner": "${S}"}}},
        {"roles": {"Packer": "${S}"}, "tools": ["${S}"]},
        {"bogus": "${S}", "version": "${MISSING}${S}"},
        {"version": "${S}", "providers": {"openai": {"api_key": "sk-${S}", "base_url": "${S}", "kind": 1}}},
        {"providers": {"${S}": {"kind": "${S}"}}, "roles": {"Architect": {"provider": "${S}", "fallbacks": "${S}"}}},
        "${S}",
    ],
)
def test_the_value_of_a_variable_is_never_shown(data: Any) -> None:
    told = "\n".join(refused(data, {"S": SECRET}))
    assert SECRET not in told
    assert "hunter2" not in told


# --- strict


def test_unknown_keys_are_reported_and_ignored_if_the_config_is_not_strict() -> None:
    text = b'{"strict": false,\n "zzzzz": 1, "retry": {"base": 3, "max_attempts": 5}}'
    told: list[str] = []
    settings = settings_of(parse_json(text, source="c"), {}, told.append)
    assert settings.retry.max_attempts == 5
    assert told == [
        "c:2:2: zzzzz: is not a known field; known: " + ", ".join(dataclasses.asdict(Settings())) + " (ignored)",
        "c:2:24: retry.base: is not a known field; did you mean base_s? (ignored)",
    ]


def test_other_mistakes_remain_mistakes_where_the_config_is_not_strict() -> None:
    assert refused({"strict": False, "bogus": 1, "durability": 5, "roles": {"lower": {}}}) == [
        "c: durability: must be 'power' or 'process', not the number 5",
        "c: roles.lower: 'lower' is not a role: a capital letter, then up to 31 letters or digits, such as Runner",
    ]


# --- agents: providers, roles, secrets

CLI = {"kind": "cli", "command": ["ask"]}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"version": "1.0"}, "version: is not a version such as 1.0.0 (semver); it must match"),
        (
            {"providers": {"gpt": {}}},
            "providers.gpt: is not a kind of provider, and sets no kind; known: openai, google",
        ),
        ({"providers": {"x": {"kind": "opnai"}}}, "providers.x.kind: is not a kind of provider; known: openai"),
        ({"providers": {"openai": {}}}, "providers.openai.api_key: is required of a provider of kind openai"),
        ({"providers": {"cli": {}}}, "providers.cli.command: is required, such as"),
        ({"providers": {"cli": {"command": []}}}, "providers.cli.command: must have at least 1"),
        ({"providers": {"scripted": {}}}, "providers.scripted.file: is required of a provider of kind scripted"),
        (
            {"providers": {"a": {**CLI, "api_key": "${K}"}}},
            "providers.a.api_key: belongs to a provider with `program`, which this one does not set",
        ),
        (
            {"providers": {"a": {"kind": "cli", "program": "claud"}}},
            "providers.a.program: is not a known program; did you mean claude?",
        ),
        (
            {"providers": {"a": {**CLI, "program": "codex", "answer_field": "x"}}},
            "providers.a.answer_field: is for other commands: farro reads the output of codex itself",
        ),
        (
            {"providers": {"a": {"kind": "cli", "program": "claude", "api_key": "${K}", "login": "${L}"}}},
            "providers.a.login: is instead of api_key: set one of the two",
        ),
        (
            {"providers": {"a": {**CLI, "file": "x"}}},
            "providers.a.file: belongs to the kind scripted; this provider is cli",
        ),
        (
            {"providers": {"a": {**CLI, "options": {}}}},
            "providers.a.options: belongs to providers of installed packages; this one is cli",
        ),
        ({"providers": {"a": {**CLI, "cost_field": "c"}}}, "providers.a.answer_field: is required where cost_field is"),
        ({"providers": {"a": {**CLI, "comand": 1}}}, "providers.a.comand: is not a known field; did you mean command?"),
        ({"providers": {"openai": {"base_url": "api.example"}}}, "providers.openai.base_url: must begin with https://"),
        (
            {"providers": {"openai": {"base_url": "https://u:p@h/"}}},
            "providers.openai.base_url: has a user or a password",
        ),
        (
            {"providers": {"cli": {"command": ["ask", "--key", "${API_KEY}"]}}},
            "providers.cli.command[2]: a secret on a command line is seen by every user",
        ),
        (
            {"roles": {"Architect": {"provider": "x"}}},
            "roles.Architect.provider: is not one of `providers`; there is none",
        ),
        (
            {"providers": {"local": CLI}, "roles": {"Architect": {"provider": "locl"}}},
            "roles.Architect.provider: is not one of `providers`; did you mean local?",
        ),
        (
            {
                "providers": {"local": CLI},
                "roles": {"Architect": {"provider": "local", "fallbacks": [{"provider": "z"}]}},
            },
            "roles.Architect.fallbacks[0].provider: is not one of `providers`; known: local",
        ),
        (
            {"providers": {"local": CLI}, "roles": {"Runner": {"provider": "local"}}},
            "roles.Runner.provider: Runner runs command plans and asks no provider",
        ),
        (
            {"security": {"payload_allowlist": ["md"]}},
            "security.payload_allowlist[0]: is not a file's ending such as .md",
        ),
    ],
)
def test_a_mistake_about_agents_is_reported_with_its_place(data: Any, problem: str) -> None:
    (told,) = refused(data, {"API_KEY": "k"})
    assert told.startswith(f"c: {problem}")


def test_a_key_is_a_variable_and_stays_a_name_until_it_is_used() -> None:
    settings = read(
        {"providers": {"openai": {"api_key": "${OPENAI_API_KEY}"}}}
    )  # which is not set: no error until it is used
    key = settings.providers["openai"].api_key
    assert key is not None
    assert str(key) == "${OPENAI_API_KEY}"
    with pytest.raises(InputError, match="the variable OPENAI_API_KEY is not set, and openai needs it"):
        key.reveal({}, "openai")
    with pytest.raises(InputError, match="is empty"):
        key.reveal({"OPENAI_API_KEY": " "})
    assert key.reveal({"OPENAI_API_KEY": f"{SECRET}\n"}) == SECRET


@pytest.mark.parametrize("text", [SECRET, f"Bearer {SECRET}", f"${{A}}{SECRET}", ""])
def test_a_key_that_is_written_into_the_config_is_refused_and_not_repeated(text: str) -> None:
    (told,) = refused({"providers": {"openai": {"api_key": text}}}, {"A": "a"})
    assert told.startswith("c: providers.openai.api_key: must be a variable of the environment, ${NAME}")
    assert SECRET not in told


def test_the_settings_never_hold_a_secret() -> None:
    environ = {"OPENAI_API_KEY": SECRET, "CLAUDE_TOKEN": "canary-2", "EDITOR": "vi", "MINE": "canary-3"}
    settings = read(
        {
            "providers": {
                "openai": {"api_key": "${OPENAI_API_KEY}"},
                "cli": {"command": ["ask"], "environment": ["CLAUDE_TOKEN", "EDITOR", "NOT_SET_KEY"]},
            }
        },
        environ,
    )
    assert SECRET not in repr(settings)
    assert set(secrets(settings, environ)) == {SECRET, "canary-2"}


def test_an_installed_kind_has_options_whose_secrets_stay_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farro.config.reader._installed", lambda group: ["acme"])
    options = {"token": "${MINE}", "region": "${R}-1", "deep": [{"k": "${MINE}"}], "n": 3}
    settings = read({"providers": {"acme": {"options": options}}}, {"R": "eu"})
    assert settings.providers["acme"].options == {
        "token": Secret("MINE"),
        "region": "eu-1",
        "deep": [{"k": Secret("MINE")}],
        "n": 3,
    }
    assert secrets(settings, {"MINE": SECRET}) == (SECRET,)


def test_a_role_uses_the_provider_it_names_or_else_the_only_one() -> None:
    one = read({"providers": {"local": CLI}})
    assert one.provider_of("Architect") == "local"
    two = read({"providers": {"local": CLI, "far": CLI}, "roles": {"DocWriter": {"provider": "far"}}})
    assert (two.provider_of("DocWriter"), two.provider_of("Architect")) == ("far", None)


def test_a_call_has_the_timeout_of_its_role_or_provider_or_else_of_its_kind() -> None:
    far = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    providers = {"cli": CLI, "far": far, "own-cli": {**CLI, "timeout_s": 3}, "own-far": {**far, "timeout_s": 4}}
    settings = read({"providers": providers, "timeouts": {"cli_seconds": 1, "http_seconds": 2}})
    assert [settings.call_timeout_s(name) for name in providers] == [1, 2, 3, 4]
    assert settings.call_timeout_s("own-far", RoleSettings(timeout_s=5)) == 5
    assert settings.call_timeout_s("own-far", RoleSettings()) == 4


def test_the_example_of_allowed_payload_endings_is_the_default() -> None:
    (message,) = [fault.message for fault in contract_faults({}) if fault.path[-1] == "payload_allowlist"]
    assert json.loads(message.partition("such as ")[2]) == list(Settings().security.payload_allowlist)


def test_the_contract_of_a_config_for_agents_is_asked_apart() -> None:
    assert [fault.path for fault in contract_faults({})] == [
        ("version",),
        ("security", "max_job_bytes"),
        ("security", "payload_allowlist"),
        ("providers",),
    ]
    whole = {"version": "1.0.0", "providers": {"a": CLI}, "security": {"max_job_bytes": 1, "payload_allowlist": []}}
    assert list(contract_faults(whole)) == []
    read(whole)


def test_editors_may_have_their_schema_line() -> None:
    assert read({"$schema": "schemas/agents-config.schema.json", "version": "1.0.0"}) == Settings()


# --- the document


def keys(shape: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return every config key with its default, as the document writes them."""
    for each in dataclasses.fields(shape):
        name, hint = each.name, typing.get_type_hints(shape)[each.name]
        value = None if each.default_factory is dataclasses.MISSING else each.default_factory()
        value = value if each.default is dataclasses.MISSING else each.default
        member = typing.get_args(hint)[1] if typing.get_origin(hint) is dict else None
        if dataclasses.is_dataclass(hint):
            yield from keys(typing.cast(type, hint), f"{prefix}{name}.")
        elif (items := [item for item in typing.get_args(hint) if dataclasses.is_dataclass(item)]) and not member:
            if items == [Secret]:
                yield f"{prefix}{name}", "null"
            else:
                yield from keys(items[0], f"{prefix}{name}[].")
        elif member is Any or member is None:
            required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
            yield f"{prefix}{name}", None if required else json.dumps(value)
        else:
            word = {"tools": "<name>", "providers": "<name>", "prices": "<model>"}.get(name, "<Role>")
            one = f"{prefix}{name}.{word}"
            yield from keys(member, f"{one}.") if dataclasses.is_dataclass(member) else [(one, None)]


def test_the_document_has_every_key_with_its_default() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)`|none) \| .+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {key: default or None for key, default in rows} == dict(keys(Settings))


def test_the_example_of_the_document_is_a_config() -> None:
    example = re.search(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    settings = settings_of(parse_yaml(example[1].encode(), source="c"), {"HOME": "/home/ann"}, pytest.fail)
    assert settings.tools["say"].command == "/home/ann/bin/say"
    assert settings.cap_of("DocWriter") is None


def test_steps_get_the_variables_that_the_list_names_and_path() -> None:
    whole = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "LC_TIME": "C", "TOKEN": "secret"}
    assert RunnersSettings().allowed(whole) == whole
    assert RunnersSettings(environment=("HOME", "LC_*")).allowed(whole) == {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "LC_TIME": "C",
    }
    assert RunnersSettings(environment=()).allowed(whole) == {"PATH": "/bin"}
