"""`farro swarm logs`: what the components of a swarm wrote. Reading it lives in operations.swarm_logs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from farro.cli.options import common, read_root
from farro.cli.terminal import answer, note, say
from farro.host.clock import SystemClock
from farro.swarm import checks, service
from farro.swarm import logs as swarm_logs
from farro.swarm.logs import Reading

_TAIL = 50
_LOOK_S = 0.2


@click.command(short_help="What the components of a swarm wrote.")
@click.argument("name", metavar="SWARM")
@click.argument("instance", metavar="[INSTANCE]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "--tail", "-n", default=_TAIL, show_default=True, type=click.IntRange(min=0), help="The last lines of each log."
)
@common
def logs(name: str, instance: str | None, follow: bool, tail: int, root: str | None, as_json: bool) -> None:
    """What the components of a swarm wrote to stdout and stderr: of all of them and of its controller, each line with
    its name; or of one. `farro up` is the swarm farro. With --json an object a line."""
    path, settings = read_root(root)
    place = service.place(path, settings)
    checks.desired(place, name)
    found = swarm_logs.logs(place, name, instance)
    if not found:
        note(f"swarm {name} has no logs yet")
    readings = {who: Reading.at_end(path, tail) for who, path in found.items()}
    alone, clock = instance is not None, SystemClock()
    for who, reading in readings.items():
        while lines := reading.run_once():
            _tell(who, lines, alone=alone, width=_width(readings), as_json=as_json)
        if not follow and reading.rest():
            _tell(who, [reading.rest()], alone=alone, width=_width(readings), as_json=as_json)
    while follow:
        clock.sleep(_LOOK_S)
        if not alone:  # whoever is started meanwhile
            for who, path in swarm_logs.logs(place, name).items():
                readings.setdefault(who, Reading(path))
        for who, reading in readings.items():
            _tell(who, reading.run_once(), alone=alone, width=_width(readings), as_json=as_json)


def _width(readings: dict[str, Reading]) -> int:
    return max(map(len, readings), default=0)


def _tell(who: str, lines: Sequence[str], *, alone: bool, width: int, as_json: bool) -> None:
    if as_json:
        for line in lines:
            answer({"instance": who, "line": line})
    elif lines:
        say("\n".join(line if alone else f"{who:<{width}} | {line}" for line in lines))
