"""A gateway with runs whose requests are in a real ledger, and a service whose every byte the test decides."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from farro.agents.gateway.port import Admission, GatewayRun, ModelExchange, Upstream
from farro.host.clock import SystemClock
from farro.store.files.ledger import FilesLedger
from farro.store.ledger import Budgets, CallEnd, CallRecord, Charge, Usage
from model_server.client import ModelAnswer, prompt_model
from support import PATIENCE_S

KEY = "the-key-of-the-account-0123456789"
LOGIN = "the-login-of-the-account-0123456789"
TOKEN_USD = Decimal("0.001")
MOST_USD = Decimal("0.5")


class LedgerMeter:
    """Port: Meter. A ledger of its own, in which each request may cost up to MOST_USD."""

    def __init__(self, root: Path, budget_usd: str | None = None) -> None:
        (root / "jobs").mkdir(parents=True, exist_ok=True)
        self.ledger = FilesLedger(str(root), SystemClock())
        self.budgets = Budgets(job_usd=None if budget_usd is None else Decimal(budget_usd))
        self.reserved: list[tuple[str | None, int, int | None]] = []
        self.settled: list[tuple[str, CallEnd, Usage | None, str | None]] = []
        self.threads: set[str] = set()

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        self.threads.add(threading.current_thread().name)
        self.reserved.append((model, prompt_bytes, max_output_tokens))
        charge = Charge(
            job_id="job-1",
            attempt=1,
            role="CodeWriter",
            step="1",
            number=len(self.reserved),
            provider="p",
            model=model,
            request_sha256="0" * 64,
            most_usd=MOST_USD,
        )
        return self.ledger.reserve(charge, self.budgets)

    def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> Decimal | None:
        self.settled.append((call_id, end, usage, model))
        cost = None if usage is None else (usage.input_tokens + usage.output_tokens) * TOKEN_USD
        self.ledger.settle(call_id, end=end, usage=usage, cost_usd=cost)
        return cost

    @property
    def calls(self) -> Sequence[CallRecord]:
        return self.ledger.of_job("job-1")

    @property
    def ends(self) -> list[CallEnd | None]:
        return [call.end for call in self.calls]


@dataclass(kw_only=True)
class StartedRun:
    """A run of a program, and what its caller got."""

    admission: Admission
    meter: LedgerMeter
    exchanges: list[ModelExchange] = field(default_factory=list)

    @property
    def kept(self) -> list[ModelExchange]:
        """End the run, and return what was kept of it."""
        self.admission.close()
        return self.exchanges

    def ask(self, dialect: Any, prompt: str, **how: Any) -> ModelAnswer:
        return prompt_model(self.admission.base_url, dialect, prompt, **{"key": self.admission.token, **how})


class Runs:
    """Starts runs, and closes them in the end."""

    def __init__(self, gateway: Any, folder: Path) -> None:
        self.gateway = gateway
        self._folder = folder
        self._opened: list[Admission] = []

    def start(self, base_url: str, *, budget_usd: str | None = None, meter: Any = None, **upstream: Any) -> StartedRun:
        meter = meter or LedgerMeter(self._folder / f"root-{len(self._opened)}", budget_usd)
        exchanges: list[ModelExchange] = []
        described = Upstream(base_url=base_url, **(upstream or {"key": KEY}))
        admission = self.gateway.admit(GatewayRun(upstream=described, meter=meter, keep=exchanges.append))
        self._opened.append(admission)
        return StartedRun(admission=admission, meter=meter, exchanges=exchanges)

    def close(self) -> None:
        for admission in self._opened:
            admission.close()


class RawService:
    """Answers every request with the same pieces. Before each of them but the first it waits for `go_on`."""

    def __init__(self, *pieces: bytes, waits: bool = False, resets: bool = False) -> None:
        self.pieces = pieces
        self.requests: list[bytes] = []
        self.left = threading.Event()  # the gateway ended a connection
        self.go_on = threading.Semaphore(0)
        self._waits, self._resets = waits, resets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self._open: list[socket.socket] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self.requests.append(read_message(connection))
            for number, piece in enumerate(self.pieces):
                if self._waits and number:
                    self.go_on.acquire(timeout=PATIENCE_S)
                connection.sendall(piece)
            if self._waits:
                if not connection.recv(1):
                    self.left.set()
            elif self._resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _ in range(100):
            self.go_on.release()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def __enter__(self) -> RawService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_message(connection: socket.socket) -> bytes:
    """Read one HTTP request with its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")), 0
    )
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head + b"\r\n\r\n" + body


def response(body: bytes, *, status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + body


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED = STREAM.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
