"""The AsyncAPI document of the wire matches the classes, and its examples are valid messages.

It was validated by hand against the JSON Schema of AsyncAPI 3.0.0 (npm: @asyncapi/specs); what that requires of the
parts used here is checked again below, without a network.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import asyncapi
import jsonschema
import pytest

from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal
from support import ROOT

DOCUMENT = asyncapi.document()
EXAMPLES = [
    (name, example["name"], example["payload"])
    for name, message in DOCUMENT["components"]["messages"].items()
    for example in message["examples"]
]


def test_the_asyncapi_document_matches_the_message_classes() -> None:
    written = Path(ROOT, "schemas", asyncapi.FILE).read_text(encoding="utf-8")
    assert json.loads(written) == DOCUMENT, "run: make schemas"
    assert written.endswith("}\n")


def test_every_reference_resolves_and_every_message_is_used() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    used = set()
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)):
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]
        used.add(reference)
    assert {f"components/messages/{name}" for name in DOCUMENT["components"]["messages"]} <= used
    assert {f"channels/{name}" for name in DOCUMENT["channels"]} <= used
    for name in DOCUMENT["channels"]:
        assert re.fullmatch(r"[\w.-]+", name)
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in ("send", "receive")
        assert operation["tags"][0]["name"] in ("orchestrator", "controller", "component")
    for channel in DOCUMENT["channels"].values():
        assert set(channel["parameters"]) == set(re.findall(r"\{(\w+)\}", channel["address"]))


@pytest.mark.parametrize(("message", "channel", "payload"), EXAMPLES, ids=lambda value: str(value)[:40])
def test_every_example_is_a_message_of_its_channel(message: str, channel: str, payload: Any) -> None:
    schema = DOCUMENT["components"]["schemas"][message]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft7Validator.check_schema(schema)  # the dialect that AsyncAPI is a superset of
    for validator in (jsonschema.Draft202012Validator, jsonschema.Draft7Validator):
        validator(schema).validate(payload)
    shape = asyncapi.SHAPES.get(message)
    if shape is not None:
        read = messages.decode(shape, json.dumps(payload).encode())
        assert json.loads(messages.encode(read)) == payload
        key = DOCUMENT["channels"][channel]["address"].format(
            swarmId="demo", role="generator", instance=payload.get("instance", "demo-generator")
        )
        said = names.read_key(key)
        assert said.kind in ("signal", "outcome", "status", "controller-up")
        if said.signal is not None:
            assert payload["signal"] == str(said.signal)


def test_every_key_of_the_seed_is_a_channel() -> None:
    demo, one = Scope(swarm="demo"), Scope(role="generator", instance="g")
    keys = [
        names.signal_key(signal, one if signal.of_component else demo)
        for signal in Signal
        if signal is not Signal.CREATE
    ]
    for signal in Signal:
        if signal is not Signal.STATUS:  # answered by a status-full
            scope = one if signal.of_component else demo
            keys += [names.event_key("ready", signal, scope), names.event_key("error", signal, scope)]
    keys += [names.controller_up_key("m"), names.status_key("status-full", "generator", "g")]
    keys += [names.status_key("status-delta", names.CONTROLLER, "m")]
    addresses = [channel["address"] for channel in DOCUMENT["channels"].values()]
    for key in keys:
        assert any(asyncapi.address_fits(address, key) for address in addresses), key
    assert not any(asyncapi.address_fits(address, "sig.swarm-create.demo") for address in addresses)
