"""Access: request every route without a token, with a wrong one, from a foreign origin and by a foreign host name."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farro.web import access_keys
from farro.web.access import HEADERS, cookie_name, sign
from farro.web.application import ENDPOINTS
from http_stage import TOKEN, WebStage
from support import eventually

KEY = hashlib.sha256(f"farro session {TOKEN}".encode()).digest()
_STREAMS = ("/api/events", "/api/jobs/x/logs/stream", "/api/jobs/x/logs/whole")
APART = (("GET", "/"), ("GET", "/page/x"), *(("GET", path) for path in _STREAMS))
ROUTES = sorted({(one.method, re.sub(r"{[^}]*}", "x", one.path)) for one in ENDPOINTS} | set(APART))


def test_route_table_lists_every_route(front: WebStage) -> None:
    told = {re.sub(r"{[^}]*}", "x", route.path) for route in front.web.routes}
    assert told == {path for _, path in ROUTES} | {"/healthz"}


def test_every_route_requires_a_token(front: WebStage) -> None:
    for method, path in ROUTES:
        for token in (None, "wrong", "", TOKEN + "x", TOKEN[:-1], "ä"):
            headers = {} if token is None else {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
            answer = front.ask(method, path, token=None, headers=headers)
            assert answer.status == 401, (method, path, token)
            assert "bearer" in answer.headers["www-authenticate"].lower()


def test_every_route_refuses_a_foreign_host_despite_a_valid_token(front: WebStage) -> None:
    foreign = ("evil.example", f"evil.example:{front.port}", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1", "a b")
    for method, path in (*ROUTES, ("GET", "/healthz"), ("GET", "/login?code=x"), ("POST", "/logout")):
        for host in foreign:
            answer = front.ask(method, path, headers={"Host": host})
            assert answer.status in (400, 403), (method, path, host)
            assert answer.status == 400 or answer.code == "forbidden_host"


def test_every_route_refuses_a_foreign_origin_despite_a_valid_token(front: WebStage) -> None:
    foreign = (
        "http://evil.example",
        "null",
        f"http://127.0.0.1:{front.port + 1}",
        f"http://localhost:{front.port}",
        "",
    )
    for method, path in (*ROUTES, ("GET", "/healthz"), ("GET", "/login?code=x"), ("POST", "/logout")):
        for origin in foreign:
            answer = front.ask(method, path, headers={"Origin": origin})
            assert (answer.status, answer.code) == (403, "forbidden_origin"), (method, path, origin)


def test_own_host_names_and_own_origin_are_accepted(front: WebStage) -> None:
    for host in (front.host, f"localhost:{front.port}", "localhost", f"[::1]:{front.port}", f"127.0.0.2:{front.port}"):
        assert front.get("/api", headers={"Host": host, "Origin": f"http://{host}"}).status == 200, host


def test_configured_hosts_are_accepted_and_addresses_when_listening_beyond_loopback(
    make_front: Callable[..., WebStage],
) -> None:
    front = make_front(config_of={"web": {"hosts": ["Farro.example"]}}, beyond=True)
    for host, status in (("farro.example", 200), ("192.0.2.7:8420", 200), ("other.example", 403)):
        assert front.get("/api", headers={"Host": host}).status == status, host


def test_sign_in_link_works_once_and_its_session_can_read_and_write(front: WebStage) -> None:
    link = front.link()
    first, second = front.get(link, token=None), front.get(link, token=None)
    assert (first.status, second.status) == (303, 401)
    assert b"farro web --link" in second.body
    assert b"used already" in second.body
    kept = first.headers["set-cookie"]
    assert "httponly" in kept.lower()
    assert "samesite=strict" in kept.lower()
    cookie = {"Cookie": kept.partition(";")[0]}
    assert front.get("/api", token=None, headers=cookie).status == 200
    again = front.get(link, token=None, headers=cookie)
    assert (again.status, again.headers["location"]) == (303, "/")
    own = {**cookie, "Origin": f"http://{front.host}"}
    assert front.post("/api/jobs", {"command": ["true"]}, token=None, headers=own).status == 201
    assert front.post("/logout", token=None, headers=own).status == 204


def test_token_file_is_readable_by_its_owner_only(front: WebStage) -> None:
    (front.root / "jobs/.web").chmod(0o755)
    access_keys.token(str(front.root), os.urandom)
    access_keys.new_code(str(front.root), os.urandom)
    kept = [path for path in (front.root / "jobs/.web").rglob("*") if path.is_file() and path.name != "address"]
    assert len(kept) >= 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


@pytest.mark.parametrize("left", [b"", b"\n", bytes(49)], ids=["nothing", "a line", "zeros"])
def test_token_file_without_its_bytes_is_replaced(tmp_path: Path, left: bytes) -> None:
    """After a power cut the file may be empty, and anyone could guess an empty token."""
    (tmp_path / "jobs/.web").mkdir(parents=True)
    (tmp_path / "jobs/.web/token").write_bytes(left)
    made = access_keys.token(str(tmp_path), os.urandom)
    assert len(made) == 48
    assert access_keys.token(str(tmp_path), os.urandom) == made
    assert (tmp_path / "jobs/.web/token").stat().st_mode & 0o077 == 0


def test_write_with_a_cookie_requires_the_own_origin(front: WebStage) -> None:
    kept = front.get(front.link(), token=None).headers["set-cookie"].partition(";")[0]
    for method, path in ROUTES:
        if method == "POST":
            answer = front.ask(method, path, {}, token=None, headers={"Cookie": kept})
            assert (answer.status, answer.code) == (403, "forbidden_origin"), path


@pytest.mark.parametrize("value", ["", "x", "9999999999.", "9999999999.00", "-1.x", "1.x", "9" * 400 + ".x", "a=b; c"])
def test_session_with_a_foreign_signature_is_refused(front: WebStage, value: str) -> None:
    assert front.get("/api", token=None, headers={"Cookie": f"{cookie_name(KEY)}={value}"}).status == 401


def session(until_s: int) -> str:
    return f"{cookie_name(KEY)}={until_s}.{sign(KEY, str(until_s))}"


def test_cookies_of_other_programs_do_not_hide_the_session(front: WebStage) -> None:
    for other in ('pref={"a": [1, 2]}; x', "a b=c", "=", "farro_session=1.x; farro_session_00000000=2.y"):
        cookie = {"Cookie": f"{other}; {session(4_000_000_000)}"}
        assert front.get("/api", token=None, headers=cookie).status == 200, other


def test_servers_of_one_host_use_different_cookies() -> None:
    assert cookie_name(b"one") != cookie_name(b"two")


def test_signed_out_cookie_is_refused(front: WebStage) -> None:
    cookie = {"Cookie": session(4_000_000_000), "Origin": f"http://{front.host}"}
    assert front.post("/logout", token=None, headers=cookie).status == 204
    assert front.get("/api", token=None, headers=cookie).status == 401
    assert front.get("/api", token=None, headers={"Cookie": session(4_000_000_001)}).status == 200


def test_stream_ends_with_its_session(front: WebStage) -> None:
    soon = session(int(time.time()) + 3)
    answer = front.get("/api/events", token=None, headers={"Cookie": soon})  # reads to the end
    assert answer.status == 200
    assert b"event: hello" in answer.body


def test_session_expires_after_a_week(front: WebStage) -> None:
    for until_s, status in ((4_000_000_000, 200), (1_000_000_000, 401)):
        cookie = {"Cookie": session(until_s)}
        assert front.get("/api", token=None, headers=cookie).status == status


def test_every_response_has_the_security_headers(front: WebStage) -> None:
    for method, path in (*ROUTES, ("GET", "/healthz"), ("GET", "/nothing"), ("DELETE", "/api"), ("GET", "/login")):
        if path.endswith(("/api/events", "/stream")):
            continue
        answer = front.ask(method, path)
        for name in HEADERS:
            assert name.lower() in answer.headers, (path, name)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "unsafe-eval" not in answer.headers["content-security-policy"]
        assert "cache-control" in answer.headers


def test_index_without_a_session_shows_the_sign_in_page(front: WebStage) -> None:
    answer = front.get("/", token=None)
    assert answer.status == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert b"farro web --link" in answer.body


def test_read_only_server_refuses_every_change(make_front: Callable[..., WebStage]) -> None:
    front = make_front(config_of={"web": {"read_only": True}})
    lock = front.root / "policy.lock.json"
    before = lock.read_bytes(), lock.stat().st_mtime_ns
    for one in ENDPOINTS:
        if one.method == "POST" and not one.changes_nothing:
            body = {"plan": {}, "note": "n", "role": "Runner", "text": "t", "action": "kill", "jobs": ["x"]}
            path = re.sub(r"{[^}]*}", "x", one.path)
            known = {name: body[name] for name in body if name in getattr(one.body, "__dataclass_fields__", {})}
            answer = front.post(path, known)
            assert (answer.status, answer.code) == (403, "read_only"), path
    assert front.post("/api/plans/check", {"plan": {"steps": []}}).status == 200
    assert front.post("/api/jobs/x/replay").status == 404
    assert (lock.read_bytes(), lock.stat().st_mtime_ns) == before
    assert front.listed() == []


def test_bodies_are_limited_and_must_be_json(front: WebStage) -> None:
    big = b'{"note": "' + b"x" * (1 << 20) + b'"}'
    assert front.post("/api/jobs", big).status == 413
    assert front.ask("POST", "/api/jobs", b"a=b", headers={"Content-Type": "text/plain"}).status == 415
    assert (
        front.ask("POST", "/api/jobs", b"{}", headers={"Content-Type": "application/x-www-form-urlencoded"}).status
        == 415
    )
    for wrong in (b"{", b"[1]", b'{"a": NaN}', b'{"command": ["x"], "command": ["y"]}', b"\xff", b"[" * 100_000):
        answer = front.post("/api/jobs", wrong)
        assert answer.status == 422, wrong[:20]


def test_silent_connection_is_closed(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farro.web.server.HEAD_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", front.port)) as silent:
        silent.settimeout(30)
        silent.sendall(b"GET /api HTT")
        assert silent.recv(100) == b""
    with socket.create_connection(("127.0.0.1", front.port)) as slow:  # a first request does not exempt it
        slow.settimeout(30)
        slow.sendall(f"GET /healthz HTTP/1.1\r\nHost: {front.host}\r\n\r\n".encode())
        said = b""
        while not said.endswith(b"}"):
            said += slow.recv(4096)
        slow.sendall(b"GET /api HTT")
        assert slow.recv(100) == b""


def test_server_survives_input_that_is_not_http(front: WebStage) -> None:
    for told in (
        b"*1\r\n$4\r\nPING\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 100_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", front.port)) as rough:
            rough.settimeout(30)
            rough.sendall(told)
            rough.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not rough.recv(65536):
                        break
                except ConnectionResetError:
                    break
    eventually(lambda: front.get("/healthz").status == 200)
