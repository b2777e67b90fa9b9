"""Run a gateway that kills itself at one point: PYTHONPATH=src:tests python -m agents.gateway.killed_gateway."""

from __future__ import annotations

import os
import signal
import sys
from decimal import Decimal
from pathlib import Path

from agents.gateway.gateway_rig import KEY, LedgerMeter
from farro.agents.gateway.gateway import open_gateway
from farro.agents.gateway.port import GatewayRun, ModelExchange, Upstream
from farro.store.ledger import CallEnd, Usage

POINTS = ("before-reserve", "reserved", "before-settle", "settled", "kept", "never")


class KilledMeter(LedgerMeter):
    """Kills the process around its calls of the ledger."""

    point = ""

    def die_at(self, point: str) -> None:
        if self.point == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        self.die_at("before-reserve")
        call_id = super().reserve(model, prompt_bytes, max_output_tokens)
        self.die_at("reserved")
        return call_id

    def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> Decimal | None:
        self.die_at("before-settle")
        cost_usd = super().settle(call_id, end, usage, model)
        self.die_at("settled")
        return cost_usd

    def keep(self, exchange: ModelExchange) -> None:
        self.die_at("kept")


def main(root: str, base_url: str, point: str, budget_usd: str) -> None:
    meter = KilledMeter(Path(root), budget_usd)
    meter.point = point
    run = GatewayRun(upstream=Upstream(base_url=base_url, key=KEY), meter=meter, keep=meter.keep)
    with open_gateway().admit(run) as admission:
        print(admission.base_url, admission.token, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
