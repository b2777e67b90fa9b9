"""Run the installed `farro` as a user does: commands and daemons as processes, with access to the files they leave."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import measured
from copies import Original
from support import need

FARRO = os.path.join(os.path.dirname(sys.executable), "farro")
if "FARRO_BRANCHES" in os.environ:
    FARRO = measured.command(os.environ["FARRO_BRANCHES"])
HOME = "TEST_FLOW_HOME"  # marks every process that a test starts, with its children
PATIENCE_S = 60.0  # a limit for waiting, never asserted: a quiet machine needs far less


@dataclass(frozen=True, kw_only=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Daemon:
    """A worker, watchdog or manager in the background."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def started(self) -> Daemon:
        """Wait until it logs that it has started. Before that, a signal would kill the interpreter."""
        assert self.process.stdout is not None
        said = line = b""
        # Read byte by byte: a buffered reader would take more than the line, and a later reader of the descriptor would
        # miss it. A worker with a filled queue may log a claim first.
        while not (line.endswith(b"\n") and b" started" in line):
            line = b"" if line.endswith(b"\n") else line
            piece = os.read(self.process.stdout.fileno(), 1)
            assert piece, said
            line, said = line + piece, said + piece
        return self

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> Done:
        """Send the signal, and wait for the end of the process."""
        self.send(number)
        return self.ended()

    def ended(self) -> Done:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Done(code=self.process.returncode, out=out, err=err)

    def kill(self) -> None:
        """Send SIGKILL, as a crash would end it."""
        self.process.kill()
        self.process.communicate()

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@functools.cache
def ready() -> Original:
    """Return the prepared process, one for all tests of this process."""
    measuring = [os.environ["FARRO_BRANCHES"]] if "FARRO_BRANCHES" in os.environ else []
    script = str(Path(__file__).with_name("ready.py"))
    made = Original(script, *measuring, env=_ready_env(), python=interpreter(FARRO))
    atexit.register(made.close)
    return made


def interpreter(program: str) -> str:
    """Return the interpreter named in the first line of the script.

    A daemon is started with the interpreter of its command. The tests may run under another name of it (python instead
    of python3), and the command lines would then differ.
    """
    with open(program, "rb") as file:
        line = os.fsdecode(file.readline()).strip()
    return line[2:] if line.startswith("#!/") and os.access(line[2:], os.X_OK) else sys.executable


def _ready_env() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FARRO_", "PYTHON"))}
    return {**env, "LC_ALL": "C.UTF-8"}


def _at_start(name: str) -> bool:
    """Return whether the interpreter reads this variable while it starts."""
    return name.startswith(("PYTHON", "LC_", "LANG", "TZ"))


_one = threading.Lock()


def copied(args: Sequence[str], cwd: str, env: Mapping[str, str], source: bytes) -> Done | None:
    """Run the command in a fork of a process that has imported it; return None while that process is busy."""
    if not _one.acquire(blocking=False):
        return None
    try:
        order = json.dumps({"argv": [FARRO, *args], "cwd": cwd, "env": dict(env)}).encode()
        ins, outs, errs = os.pipe(), os.pipe(), os.pipe()
        pid = ready().copy(order, [ins[0], outs[1], errs[1]])
        for fd in (ins[0], outs[1], errs[1]):
            os.close(fd)
        with open(ins[1], "wb") as stdin, open(outs[0], "rb") as stdout, open(errs[0], "rb") as stderr:
            said: dict[str, bytes] = {}
            readers = [
                threading.Thread(target=_feed, args=(stdin, source)),
                threading.Thread(target=lambda: said.update(out=stdout.read())),
                threading.Thread(target=lambda: said.update(err=stderr.read())),
            ]
            for reader in readers:
                reader.start()
            code = ready().ended(PATIENCE_S)
            if code is None:
                ready().kill(pid)
            for reader in readers:
                reader.join(PATIENCE_S)  # no process that the command left may hold the streams
                assert not reader.is_alive(), f"a process still holds the streams of farro {' '.join(args)}"
        assert code is not None, f"farro did not end: farro {' '.join(args)}"
        return Done(code=code, out=said["out"].decode(), err=said["err"].decode())
    finally:
        _one.release()


def _feed(stdin: BinaryIO, source: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stdin:
        stdin.write(source)


class Program:
    """Use farro in one folder: `run` waits for a command, `start` leaves a daemon running until the test ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.daemons: list[Daemon] = []
        self.env = _ready_env()
        self.env[HOME] = str(path)
        self.env["XDG_STATE_HOME"] = str(path / ".state")  # never the personal root of the user who runs the tests

    def run(
        self,
        *args: str,
        stdin: bytes | str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        code: int | None = None,
    ) -> Done:
        """Run a command in its own process; with `code`, require that exit code."""
        whole = {**self.env, **(env or {})}
        source = (stdin.encode() if isinstance(stdin, str) else stdin) or b""
        anew = prefix or any(value != _ready_env().get(name) for name, value in whole.items() if _at_start(name))
        if anew or (told := copied(args, str(cwd or self.path), whole, source)) is None:
            done = subprocess.run(
                [*prefix, FARRO, *args],
                cwd=cwd or self.path,
                env=whole,
                input=source,
                capture_output=True,
                check=False,
                timeout=PATIENCE_S,
            )
            told = Done(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())
        assert "Traceback" not in told.err, told.err
        assert code is None or told.code == code, f"exit {told.code} of farro {' '.join(args)}\n{told.out}\n{told.err}"
        return told

    def call(self, *args: str, stdin: bytes | str = b"", code: int | None = None) -> Done:
        """Run a command inside this process, which saves the start of an interpreter."""
        from farro.cli.main import run

        source = stdin.encode() if isinstance(stdin, str) else stdin
        out, err = _text(b""), _text(b"")
        before, sys.stdin = sys.stdin, _text(source)
        # Restore the handlers that a daemon sets: every process started later would inherit them.
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with contextlib.chdir(self.path), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                answer = run(list(args))
        finally:
            sys.stdin = before
            for number, handler in handlers.items():
                signal.signal(number, handler)
        told = Done(code=answer, out=_said(out), err=_said(err))
        assert code is None or told.code == code, f"exit {told.code} of farro {' '.join(args)}\n{told.out}\n{told.err}"
        return told

    def start(self, *args: str) -> Daemon:
        daemon = Daemon([FARRO, *args], self.path, self.env)
        self.daemons.append(daemon)
        return daemon

    def enqueue(self, plan: Mapping[str, Any], *args: str) -> str:
        return self.call("enqueue", "-", *args, stdin=json.dumps(plan), code=0).out.strip()

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job as `farro show --json` prints it."""
        told: dict[str, Any] = self.call("show", job_id, "--json", code=0).json
        return told

    def status(self, job_id: str) -> str:
        return str(self.job(job_id)["status"])

    def folder(self, job_id: str) -> Path:
        return self.path / self.job(job_id)["place"] / job_id

    def worked(self, *args: str) -> Done:
        """Run every queued job."""
        return self.run("worker", "--drain", *args, code=0)

    def living(self) -> list[int]:
        """Return the ids of all live processes that this test started, with their children."""
        return _carrying(f"{HOME}={self.path}")

    def clean_up(self) -> None:
        for daemon in self.daemons:
            daemon.clean_up()
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _text(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", write_through=True)


def _said(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def steps(*commands: Sequence[str], **plan: Any) -> dict[str, Any]:
    """Build a plan of these commands, one step each."""
    numbered = [
        {"step_number": number, "command": command[0], "args": list(command[1:])}
        for number, command in enumerate(commands, start=1)
    ]
    return {"plan_id": "p", "steps": numbered, **plan}


@contextlib.contextmanager
def kept_stopped(pid: int) -> Iterator[None]:
    """Keep a process from running, also after a SIGCONT: it hangs and cannot handle a SIGTERM."""
    over = threading.Event()

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.001)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def shell(script: str, **plan: Any) -> dict[str, Any]:
    return steps(("sh", "-c", script), **plan)


def endless(started: str = "started", **plan: Any) -> dict[str, Any]:
    """Build a step that touches a file, starts a second process in its own session, and never ends."""
    return shell(f"setsid sleep 100000 & touch {started}; exec sleep 100000", **plan)


def once_endless(**plan: Any) -> dict[str, Any]:
    """Build a step that never ends in its first attempt, and ends at once in a later one."""
    script = "if mkdir once 2>/dev/null; then setsid sleep 100000 & touch started; exec sleep 100000; fi; echo again"
    return shell(script, **plan)


def listing(root: Path) -> dict[str, bytes | str]:
    """Return everything below, with hidden folders: files with their bytes, links with their targets."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = path.read_bytes() if path.is_file() else "special"
    return found


def marked(root: Path) -> list[int]:
    """Return the processes of this root's jobs, which have FARRO_ROOT in their environment."""
    return _carrying(f"FARRO_ROOT={root}")


def _carrying(mark: str) -> list[int]:
    return [pid for pid, environ in _environs() if mark.encode() in environ.split(b"\0")]


def _environs() -> Iterator[tuple[int, bytes]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                yield int(name), Path("/proc", name, "environ").read_bytes()


def unprivileged() -> list[str]:
    """Return a command prefix under which file permissions apply to root too."""
    if os.geteuid() != 0:
        return []
    return [need("setpriv", "root is refused nothing"), "--bounding-set", "-dac_override,-dac_read_search"]
