"""Check the proxy through which confined processes reach listed hosts: what it admits, judges, passes on and closes."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from farro.execution.confined import Confined
from farro.execution.runner import Guarding
from farro.host.processes import Launch, Process
from farro.sandbox.confinement import wider
from farro.sandbox.host_proxy import HostProxy, is_public, split_host
from sandbox.greeting import greet_callers
from sandbox.hostile_stage import working

NAMES: dict[str, list[str]] = {}  # what the hosts of a test are called


@pytest.fixture
def server() -> Iterator[int]:
    """Return the port of a host that says hello."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        greet_callers(listener)
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def proxy_to(*hosts: str) -> HostProxy:
    def resolve(host: str, port: int) -> Sequence[str]:
        if host not in NAMES:
            raise OSError("unknown host")
        return NAMES[host]

    NAMES.clear()
    return HostProxy(hosts, resolve)


def ask(proxy: HostProxy, request: str, *, token: str | None = None) -> bytes:
    """Return all that the proxy answers to a request without its last empty line."""
    found = urlsplit(proxy.variables()["HTTPS_PROXY"])
    own = base64.b64encode(f"{found.username}:{token or found.password}".encode()).decode()
    lines = f"{request}\r\nProxy-Authorization: Basic {own}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as talk:
        talk.sendall(lines.encode())
        answer = b""
        while piece := talk.recv(1000):
            answer += piece
        return answer


def test_a_listed_host_is_reached_and_another_is_not(server: int) -> None:
    proxy = proxy_to("index.example:443", f"127.0.0.1:{server}")
    NAMES["index.example"] = NAMES["127.0.0.1"] = ["127.0.0.1"]
    assert ask(proxy, f"CONNECT 127.0.0.1:{server} HTTP/1.1") == b"HTTP/1.1 200 Connection established\r\n\r\nhello"
    for other in (f"localhost:{server}", "127.0.0.1:1", "evil.example:443", "index.example", "index.example:443x", ""):
        assert ask(proxy, f"CONNECT {other} HTTP/1.1").startswith(b"HTTP/1.1 403 "), other
    proxy.close()


def test_a_listed_name_that_means_a_private_address_is_refused_unless_that_is_listed(server: int) -> None:
    """DNS rebinding, and a redirect to such a name."""
    proxy = proxy_to(f"index.example:{server}")
    NAMES["index.example"] = ["127.0.0.1", "10.0.0.1", "169.254.169.254"]
    answer = ask(proxy, f"CONNECT index.example:{server} HTTP/1.1")
    assert b"403 Forbidden" in answer
    assert b"is 127.0.0.1, which is not of the internet" in answer
    proxy.close()
    proxy = proxy_to(f"index.example:{server}", f"127.0.0.1:{server}")
    NAMES["index.example"] = ["10.0.0.1", "127.0.0.1"]
    assert ask(proxy, f"CONNECT INDEX.example.:{server} HTTP/1.1").endswith(b"hello")
    proxy.close()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("64:ff9b::5db8:d822", True),
        *((text, False) for text in ("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1")),
        *((text, False) for text in ("100.64.0.1", "100.100.100.200", "169.254.169.254", "168.63.129.16")),
        *((text, False) for text in ("192.0.0.192", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1")),
        *((text, False) for text in ("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1")),
        *((text, False) for text in ("fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "::127.0.0.1")),
        *((text, False) for text in ("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a00:1::1")),
        *((text, False) for text in ("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2001:0:4136:e378::1")),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Index.Example.:443", ("index.example", 443)),
        ("[2001:DB8:0::1]:443", ("2001:db8::1", 443)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        *((text, None) for text in ("index.example", "index.example:", ":443", "a:0", "a:65536", "a:-1", "a:٤٤٣")),
    ],
)
def test_a_host_has_one_spelling(text: str, host: tuple[str, int] | None) -> None:
    assert split_host(text) == host


def test_a_caller_without_the_token_is_not_served(server: int) -> None:
    """Another user or job of this machine."""
    proxy = proxy_to(f"127.0.0.1:{server}")
    assert ask(proxy, f"CONNECT 127.0.0.1:{server} HTTP/1.1", token="guess").startswith(b"HTTP/1.1 407 ")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as talk:
        talk.sendall(f"CONNECT 127.0.0.1:{server} HTTP/1.1\r\n\r\n".encode())
        assert b"Proxy-Authenticate: Basic" in talk.recv(1000)
    proxy.close()


@pytest.mark.parametrize("request_line", ["GET http://127.0.0.1/ HTTP/1.1", "POST / HTTP/1.1", "x"])
def test_other_requests_are_refused(request_line: str, server: int) -> None:
    proxy = proxy_to(f"127.0.0.1:{server}")
    assert ask(proxy, request_line).startswith(b"HTTP/1.1 405 ")
    proxy.close()


def test_a_head_without_end_is_refused() -> None:
    proxy = proxy_to()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as talk:
        with contextlib.suppress(OSError):
            talk.sendall(b"CONNECT " + b"x" * 300_000)
        with contextlib.suppress(ConnectionResetError):
            assert talk.recv(100).startswith(b"HTTP/1.1 400 ")
    proxy.close()


def test_closing_ends_listeners_and_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        proxy = proxy_to(f"127.0.0.1:{port}")
        NAMES["127.0.0.1"] = ["127.0.0.1"]
        answers: list[bytes] = []
        asking = threading.Thread(target=lambda: answers.append(ask(proxy, f"CONNECT 127.0.0.1:{port} HTTP/1.1")))
        asking.start()
        with silent.accept()[0]:
            proxy.close()
            asking.join(60)
        assert not asking.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=30)


def test_networks_add_up() -> None:
    assert wider(False, ()) == ()
    assert wider(False, ("a:1",)) == wider(("a:1",), False) == ("a:1",)
    assert wider(("a:1",), ("b:2",)) == ("a:1", "b:2")
    assert wider(("a:1",), True) is wider(True, False) is True


CLIENT = """
import base64, os, socket, sys, urllib.parse
def ask(host, port):
    proxy = urllib.parse.urlsplit(os.environ["https_proxy"])
    with socket.create_connection((proxy.hostname, proxy.port), 20) as talk:
        own = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
        talk.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nProxy-Authorization: Basic {own}\\r\\n\\r\\n".encode())
        answer = b""
        while piece := talk.recv(1000):
            answer += piece
    return answer.split()[1], answer[-5:]
port, other = map(int, sys.argv[1:])
assert ask("127.0.0.1", port) == (b"200", b"hello")
assert ask("127.0.0.1", other)[0] == b"403"
for direct in (port, other):
    try:
        socket.create_connection(("127.0.0.1", direct), 20)
    except OSError:
        continue
    sys.exit("reached without the proxy")
"""


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
def test_a_confined_process_reaches_listed_hosts_through_the_proxy_only(
    tmp_path: Path, level: str, server: int
) -> None:
    working(level)
    with socket.create_server(("127.0.0.1", 0)) as other:
        confined = Confined(
            root=str(tmp_path),
            folder=str(tmp_path),
            marker="proxied",
            guarding=Guarding(sandbox=level, network=(f"127.0.0.1:{server}",)),  # type: ignore[arg-type]
            wanted=(),
        )
        try:
            launch = Launch(
                argv=(sys.executable, "-c", CLIENT, str(server), str(other.getsockname()[1])),
                stdin=None,
                stdout=str(tmp_path / "out"),
                stderr=str(tmp_path / "err"),
                cwd=str(tmp_path),
                env={"PATH": os.environ["PATH"]},
            )
            process = confined.start(launch)
            assert isinstance(process, Process), process
            ended = process.wait(60)
            assert ended is not None
            assert (ended.code, (tmp_path / "err").read_text()) == (0, "")
        finally:
            confined.close()
    assert not any(thread.name in ("proxy", "proxied") and thread.is_alive() for thread in _joined())


def _joined() -> list[threading.Thread]:
    found = [thread for thread in threading.enumerate() if thread.name in ("proxy", "proxied")]
    for thread in found:
        thread.join(30)
    return found
