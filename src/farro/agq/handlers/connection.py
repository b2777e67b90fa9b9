"""Handle what every Redis client sends by itself: HELLO, AUTH, CLIENT, SELECT, INFO, COMMAND, CONFIG, PING, MULTI,
QUIT, … and subscriptions."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any

from farro.agq.changes import MAX_SUBSCRIPTIONS, Subscription
from farro.agq.handlers.table import Command, integer, table, text
from farro.agq.keys import MAX_LENGTH
from farro.agq.resp import NOTHING, OK, PONG, CommandError, MultiReply, PushMessage, SimpleString

if TYPE_CHECKING:
    from farro.agq.connection import Connection

REDIS_VERSION = "7.4.0"  # the protocol version that clients may expect
WRONG_KEY_S = 0.5  # delay of the reply to a wrong key, against guessing
WRONG_KEYS = 5  # then the connection is closed
LISTED: dict[bytes, Command] = {}  # all commands, for COMMAND


# --- identity ---


def auth(connection: Connection, args: list[bytes]) -> Any:
    user, key = (b"default", args[1]) if len(args) == 2 else (args[1], args[2])
    return OK if _authenticated(connection, user, key) else _wrong_key(connection)


async def _wrong_key(connection: Connection) -> Any:
    """Refuse a wrong key late, and log it; close the connection after a few of them."""
    connection.wrong_keys += 1
    connection.server.log("warning", "a wrong key", {"peer": connection.peer, "times": connection.wrong_keys})
    await asyncio.sleep(WRONG_KEY_S)
    answer = CommandError("invalid username-password pair or user is disabled.", "WRONGPASS")
    if connection.wrong_keys >= WRONG_KEYS and not connection.closed:
        connection.send(answer)
        connection.close_after_writes()
    raise answer


def _authenticated(connection: Connection, user: bytes, key: bytes) -> bool:
    wanted = connection.server.key
    if wanted is None:
        raise CommandError("AUTH was sent, but this server has no key: the config's `agq.key` names one")
    # Compared in constant time.
    if not hmac.compare_digest(key, wanted.encode("utf-8", "surrogateescape")) or user != b"default":
        return False
    connection.authenticate()
    return True


def hello(connection: Connection, args: list[bytes]) -> Any:
    proto, name = connection.proto, None
    at = 1
    if len(args) > 1:
        if args[1] not in (b"2", b"3"):
            raise CommandError("unsupported protocol version", "NOPROTO")
        proto, at = int(args[1]), 2
    credentials = None
    while at < len(args):
        word = args[at].upper()
        if word == b"AUTH" and at + 2 < len(args):
            credentials, at = (args[at + 1], args[at + 2]), at + 3
        elif word == b"SETNAME" and at + 1 < len(args):
            name, at = args[at + 1], at + 2
        else:
            raise CommandError("Syntax error in HELLO")
    if credentials is not None and not _authenticated(connection, *credentials):
        return _wrong_key(connection)
    if not connection.authenticated:
        raise CommandError("HELLO must be called with the client already authenticated, or with AUTH", "NOAUTH")
    if name is not None:
        _name(connection, name)
    connection.proto = proto
    return {
        "server": "redis",
        "version": REDIS_VERSION,
        "proto": proto,
        "id": connection.id,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }


def client(connection: Connection, args: list[bytes]) -> Any:
    word = args[1].upper()
    if word == b"SETNAME" and len(args) == 3:
        _name(connection, args[2])
        return OK
    if word == b"GETNAME":
        return connection.name or None
    if word == b"SETINFO" and len(args) == 4:
        if args[2].upper() not in (b"LIB-NAME", b"LIB-VER"):
            raise CommandError("Unrecognized option: only LIB-NAME and LIB-VER are kept")
        connection.info[text(args[2]).lower()] = text(args[3])[:128]
        return OK
    if word == b"ID":
        return connection.id
    if word == b"INFO":
        return _line(connection) + "\n"
    if word == b"LIST":
        return "".join(_line(other) + "\n" for other in connection.server.connections.values())
    if word in (b"NO-EVICT", b"NO-TOUCH"):
        return OK
    shown = text(args[1])[:40]
    raise CommandError(f"unknown subcommand '{shown}'. Try CLIENT SETNAME, SETINFO, GETNAME, ID, INFO, LIST")


def _name(connection: Connection, word: bytes) -> None:
    name = text(word)
    if any(not "!" <= char <= "~" for char in name) or len(name) > 128:
        raise CommandError("Client names cannot contain spaces, newlines or special characters.")
    connection.name = name
    if connection.server.workers.is_id(word):
        connection.server.workers.announce(connection, name)


def _line(connection: Connection) -> str:
    age = int(connection.server.now_s() - connection.since_s)
    library = connection.info.get("lib-name", "")
    who = f"id={connection.id} addr={connection.peer} name={connection.name}"
    return f"{who} age={age} resp={connection.proto} lib-name={library}"


def select(connection: Connection, args: list[bytes]) -> Any:
    if integer(args[1]) != 0:
        raise CommandError("DB index is out of range")
    return OK


# --- liveness ---


def ping(connection: Connection, args: list[bytes]) -> Any:
    """Return the argument, as Redis does. If it can be a worker's id, it is that worker's heartbeat."""
    subscribed = bool(connection.subscriptions)
    if subscribed and connection.proto == 2:
        return [b"pong", args[1] if len(args) > 1 else b""]
    if len(args) == 1:
        return PONG
    if subscribed:
        return args[1]  # the client checks whether its subscription is alive
    workers = connection.server.workers
    if workers.is_id(args[1]):
        workers.announce(connection, args[1].decode())
    return args[1]


def quit_(connection: Connection, args: list[bytes]) -> Any:
    connection.info["bye"] = "yes"
    connection.send(OK)
    connection.close_after_writes()
    return NOTHING


def reset(connection: Connection, args: list[bytes]) -> Any:
    """Reset to a new connection; its jobs remain, because they are its worker's."""
    connection.unqueue()
    connection.server.channels.forget(connection)
    connection.proto = 2
    connection.name = ""
    connection.deauthenticate()
    return SimpleString("RESET")


# --- information ---


def info(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    sections: dict[str, dict[str, Any]] = {
        "server": {
            "redis_version": REDIS_VERSION,
            "redis_mode": "standalone",
            "farro_version": server.options.version,
            "uptime_in_seconds": int(server.now_s() - server.started_s),
            "tcp_port": server.port,
        },
        "clients": {
            "connected_clients": len(server.connections),
            "maxclients": server.options.max_connections,
            "blocked_clients": sum(1 for other in server.connections.values() if other.waiter is not None),
        },
        "persistence": {"loading": 0},
        "stats": {"total_connections_received": server.served},
        "replication": {"role": "master", "connected_slaves": 0},
        "jobs": {
            "jobs_popped": server.workers.popped,
            "jobs_committed": server.workers.committed,
            "jobs_returned": server.workers.returned,
            "jobs_held": len(server.workers.held),
            "workers": len(server.workers.named),
        },
        "keyspace": {},
    }
    wanted = {text(word).lower() for word in args[1:]} - {"all", "default", "everything"}
    shown = [
        f"# {name.capitalize()}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in values.items())
        for name, values in sections.items()
        if not wanted or name in wanted
    ]
    return "\r\n".join(shown)


def command(connection: Connection, args: list[bytes]) -> Any:
    word = args[1].upper() if len(args) > 1 else b""
    if word == b"COUNT":
        return len(LISTED)
    if word == b"DOCS":
        return {}
    if word == b"LIST":
        return [name.lower() for name in LISTED]
    if word == b"INFO" and len(args) > 2:
        return [_described(LISTED.get(name.upper())) for name in args[2:]]
    if word in (b"", b"INFO"):
        return [_described(each) for each in LISTED.values()]
    raise CommandError(f"unknown subcommand '{text(args[1])[:40]}'. Try COMMAND COUNT, DOCS, INFO, LIST")


def _described(each: Command | None) -> Any:
    return None if each is None else [each.name.lower(), each.arity, [], 0, 0, 0]


def config(connection: Connection, args: list[bytes]) -> Any:
    if args[1].upper() == b"GET":
        return {}
    raise CommandError("the config is a file: agents-config.json of the root that farro agq serves")


# --- transactions ---


def multi(connection: Connection, args: list[bytes]) -> Any:
    if connection.queued is not None:
        raise CommandError("MULTI calls can not be nested")
    connection.queued, connection.multi_failed = [], False
    return OK


def discard(connection: Connection, args: list[bytes]) -> Any:
    if connection.queued is None:
        raise CommandError("DISCARD without MULTI")
    connection.unqueue()
    return OK


def exec_(connection: Connection, args: list[bytes]) -> Any:
    queued, connection.queued = connection.queued, None
    if queued is None:
        raise CommandError("EXEC without MULTI")
    if connection.multi_failed:
        connection.unqueue()
        raise CommandError("Transaction discarded because of previous errors.", "EXECABORT")
    return connection.execute(queued)


# --- subscriptions ---


def subscribe(connection: Connection, args: list[bytes]) -> Any:
    _check_not_executing(connection)
    if any(len(name) > MAX_LENGTH for name in args[1:]):
        raise CommandError(f"the name of a channel has at most {MAX_LENGTH} bytes")
    if len(connection.subscriptions) + len(args) - 1 > MAX_SUBSCRIPTIONS:
        raise CommandError(f"at most {MAX_SUBSCRIPTIONS} subscriptions of one connection")
    word, is_pattern = args[0].lower(), args[0].upper() == b"PSUBSCRIBE"
    answers = []
    for name in args[1:]:
        connection.server.channels.subscribe(connection, Subscription(is_pattern, name))
        answers.append(PushMessage((word, name, len(connection.subscriptions))))
    connection.server.watch_all_changes()
    return MultiReply(tuple(answers))


def unsubscribe(connection: Connection, args: list[bytes]) -> Any:
    _check_not_executing(connection)
    word, is_pattern = args[0].lower(), args[0].upper() == b"PUNSUBSCRIBE"
    own = (wanted.name for wanted in connection.subscriptions if wanted.is_pattern is is_pattern)
    answers = []
    for name in args[1:] or sorted(own):
        connection.server.channels.unsubscribe(connection, Subscription(is_pattern, name))
        answers.append(PushMessage((word, name, len(connection.subscriptions))))
    return MultiReply(tuple(answers or [PushMessage((word, None, len(connection.subscriptions)))]))


def _check_not_executing(connection: Connection) -> None:
    if connection.executing:
        raise CommandError("no subscriptions between MULTI and EXEC")


TABLE = table(
    ("AUTH", auth, 1, 2),
    ("HELLO", hello, 0, None),
    ("CLIENT", client, 1, None),
    ("SELECT", select, 1, 1),
    ("PING", ping, 0, 1),
    ("QUIT", quit_, 0, None),
    ("RESET", reset, 0, 0),
    ("INFO", info, 0, None),
    ("COMMAND", command, 0, None),
    ("CONFIG", config, 1, None),
    ("MULTI", multi, 0, 0),
    ("DISCARD", discard, 0, 0),
    ("EXEC", exec_, 0, 0),
    ("SUBSCRIBE", subscribe, 1, None),
    ("PSUBSCRIBE", subscribe, 1, None),
    ("UNSUBSCRIBE", unsubscribe, 0, None),
    ("PUNSUBSCRIBE", unsubscribe, 0, None),
)
