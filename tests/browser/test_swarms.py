"""Check a swarm on the page: its diagram, starting and stopping it, and the list of its commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.conftest import Visit
from browser.site import Site, init, program
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import BusMessage
from support import ROOT, eventually

Come = Callable[..., Visit]


def bee(role: str, **fields: object) -> dict[str, object]:
    return {"role": role, "command": [sys.executable, "-m", "swarm.bees", role], **fields}


@pytest.fixture
def hive(tmp_path: Path) -> Iterator[Site]:
    """A root with a swarm that is ready and not started."""
    root = init(tmp_path / "shop")
    env = {"PYTHONPATH": str(Path(ROOT, "tests")), "SINK": str(root / "sink")}
    bees = [
        bee("generator", work={"out": ["items"]}, env=env),
        bee("processor", work={"in": ["items"], "out": ["done"]}, instances=2, env=env),
        bee("sink", work={"in": ["done"]}, env=env, config={"limit": 3, "colour": "red"}),
    ]
    (root / "demo.json").write_text(json.dumps({"id": "demo", "bees": bees}))
    told = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
    orchestrator = subprocess.Popen(
        [sys.executable, "-m", "farro", "orchestrator"],
        cwd=root,
        env=told,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    site = Site(root=root)
    try:
        program(root, "swarm", "apply", "demo.json")
        yield site.start()
    finally:
        site.stop()
        program(root, "swarm", "stop", "demo", check=False)
        program(root, "swarm", "remove", "demo", check=False)
        orchestrator.terminate()
        orchestrator.wait(60)


def test_a_swarm_is_drawn_started_and_stopped_on_the_page(hive: Site, visit: Come) -> None:
    eventually(lambda: hive.ask("/api/swarms/demo")["state"] == "Ready", "the swarm is not ready")
    page = visit(hive).open("swarms")
    expect(page).to_have_title("demo · Swarms · farro")
    drawn = page.get_by_role("group", name="Topology of demo")
    expect(drawn.get_by_role("button")).to_have_count(3)
    expect(drawn).to_contain_text("items")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    ledger = page.get_by_role("region", name="Commands").first
    expect(ledger).to_contain_text("swarm-start")
    lines = "cell => { const it = new Range(); it.selectNodeContents(cell); return it.getClientRects().length; }"
    page.set_viewport_size({"width": 360, "height": 800})
    assert ledger.locator("td.mono").first.evaluate(lines) == 1  # words do not wrap while the diagram can scroll
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(drawn.get_by_label("processor: 2 instances, running")).to_be_visible()
    expect(drawn).to_contain_text("/s")
    drawn.get_by_label("processor").click()
    expect(page.get_by_role("button", name="Configure")).to_have_count(2)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(ledger).to_contain_text("swarm-stop")
    eventually(lambda: hive.ask("/api/swarms/demo")["state"] == "Stopped", "the swarm was not stopped")
    expect(page.get_by_role("button", name="Start")).to_be_visible()


def test_a_component_form_starts_from_its_running_configuration(hive: Site, visit: Come) -> None:
    eventually(lambda: hive.ask("/api/swarms/demo")["state"] == "Ready", "the swarm is not ready")
    (sink,) = [one for one in hive.ask("/api/swarms/demo")["components"] if one["role"] == "sink"]
    page = visit(hive).open("swarm/demo")
    page.get_by_label("Topology of demo").get_by_label("sink").click()
    dialog = page.get_by_role("dialog", name=f"Configure {sink['instance']}")
    sent: list[dict[str, object]] = []
    page.on("request", lambda asked: sent.append(asked.post_data_json) if asked.url.endswith("/config") else None)

    def configured() -> object:
        return hive.ask("/api/swarms/demo/plan")["configured"].get(sink["instance"])

    def commands(signal: str) -> list[dict[str, object]]:
        found = [one for one in hive.ask("/api/swarms/demo/commands")["commands"] if one["signal"] == signal]
        return [{"signal": one["signal"], "result": one["result"]} for one in found]

    page.get_by_role("button", name=f"Configure {sink['instance']}").click()
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing differs")
    dialog.get_by_label("Config").fill('{"limit": 7, ')
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This is no JSON")
    dialog.get_by_label("Config").fill('{"limit": 7, "colour": "red"}')
    dialog.get_by_role("button", name="Send").click()
    expect(dialog).to_have_count(0)
    eventually(lambda: configured() == {"limit": 7}, "it was not configured")
    expect(page.locator(".table.ledger")).to_contain_text("config-update")
    page.reload()
    page.get_by_role("button", name=f"Configure {sink['instance']}").click()
    assert json.loads(dialog.get_by_label("Config").input_value()) == {"limit": 7, "colour": "red"}
    dialog.get_by_label("Enabled").check()
    dialog.get_by_role("button", name="Send").click()
    expect(dialog).to_have_count(0)
    assert sent == [{"swarm": "demo", "config": {"limit": 7}}, {"swarm": "demo", "enabled": True}]
    enabled = [{"signal": "config-update", "result": "success"}] * 2
    eventually(lambda: commands("config-update") == enabled, "it was not enabled")
    assert configured() == {"limit": 7}


def test_dead_letters_stand_first_on_the_page(hive: Site, visit: Come) -> None:
    """All components are healthy, so without this notice a user would miss the dead letters."""

    async def refused() -> None:
        bus = await open_bus(f"files:{hive.root}/bus")
        await bus.publish("ph.demo.hive", BusMessage(key="done", body=b"{}", message_id="one"))
        consumer = await bus.consume("ph.demo.done", prefetch=1)
        await (await anext(aiter(consumer))).reject(requeue=False)
        await consumer.close()
        await bus.close()

    eventually(lambda: hive.ask("/api/swarms/demo")["state"] == "Ready", "the swarm is not ready")
    page = visit(hive).open("swarm/demo")
    expect(page.get_by_role("group", name="Topology of demo")).to_be_visible()
    assert "Dead letters" not in page.inner_text("main")
    with ThreadPoolExecutor(1) as aside:  # Playwright already runs an event loop in this thread
        aside.submit(asyncio.run, refused()).result()
    letters = lambda: [one.get("deadLetters") for one in hive.ask("/api/swarms/demo")["queues"]]  # noqa: E731
    eventually(lambda: 1 in letters(), "the controller does not report it")
    notice = page.locator(".notice").first
    expect(notice).to_contain_text("Dead letters: 1 of done.")
    expect(notice).to_contain_text("farro swarm dead demo")
