"""Run the examples of docs/providers.md."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from farro import documents
from farro.agents.programs.generic import GENERIC
from farro.agents.programs.port import AgentProgram, GatewayAddress, ProgramRun
from farro.agents.provider_calls import providers_of_role
from farro.agents.providers.port import ChatMessage, ProviderTrouble, TroubleKind
from farro.agents.providers.registry import BUILT_IN, Place, make_provider
from farro.config.reader import settings_of
from farro.config.settings import ProviderSettings, Settings
from farro.testing.provider import request
from support import ROOT

PAGE = Path(ROOT, "docs", "providers.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def loaded(text: str) -> Settings:
    return settings_of(documents.parse(text.encode(), "page.yaml"), {}, warn=lambda _: None)


def test_the_example_of_an_acp_agent_loads() -> None:
    (block,) = (block for block in blocks("yaml") if "acp" in block)
    provider = loaded(f'version: "1.0.0"\n{block}').providers["gemini"]
    assert provider.kind == "acp"


def test_the_config_loads_and_every_provider_can_be_made() -> None:
    settings = loaded(blocks("yaml")[0])
    assert [each.provider for each in providers_of_role(settings, "Architect")] == ["gpt", "gemini", "local"]
    for name, its in settings.providers.items():
        make_provider(name, its, root="/", environ={}).close()


def test_the_answers_are_given_as_the_page_says(tmp_path: Path) -> None:
    answers = next(block for block in blocks("yaml") if block.startswith("answers:"))
    (tmp_path / "answers.yaml").write_text(answers, encoding="utf-8")
    settings = ProviderSettings(kind="scripted", file="answers.yaml")
    provider = make_provider("play", settings, root=str(tmp_path), environ={})
    assert '"documents"' in provider.answer(request(1, role="DocWriter")).text
    assert provider.answer(request(1)).text == "I do not know."


def test_the_example_of_a_provider_answers() -> None:
    made: dict[str, object] = {}
    exec(blocks("python")[0], made)
    make = made["make"]
    assert callable(make)
    provider = make("acme", ProviderSettings(kind="acme"), Place(root="/", environ={}))
    assert provider.answer(request(1)).text == "…"
    with pytest.raises(ProviderTrouble, match="has nothing to say"):
        provider.answer(replace(request(1), messages=(ChatMessage(author="user", text="say nothing"),)))


def test_the_example_of_a_coding_agent_is_one() -> None:
    made: dict[str, Any] = {}
    exec(blocks("python")[1], made)
    program: AgentProgram = made["ACME"]
    gateway = GatewayAddress(base_url="http://127.0.0.1:1", token="a-token")
    run = ProgramRun(home="/h", cwd="/c", prompt_file="/h/p", session_id="one", gateway=gateway)
    assert program.launch(run).args == ("--begin", "one")
    assert program.launch(run).env["ACME_KEY"] == "a-token"
    assert program.launch(replace(run, resume=True)).args == ("--continue", "one")
    reader = program.reader(run, print)
    reader.feed(b"It is done.")
    assert reader.end(0, "").text == "It is done."
    assert not program.resumable("/h", "one", "/c")
    assert {name for name in dir(GENERIC) if not name.startswith("_")} <= set(dir(program))


def test_the_page_has_every_kind_and_every_trouble() -> None:
    for word in (*BUILT_IN, *get_args(TroubleKind)):
        assert re.search(rf"^\| `{word}` \|", PAGE, re.MULTILINE), word
