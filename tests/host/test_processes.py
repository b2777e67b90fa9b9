"""Start, await, end and identify real processes."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farro.errors import StorageTrouble
from farro.host import (
    cgroup,
    fs,
    process_identity,
    process_limits,
    process_table,
    process_tree,
    processes,
    worker_processes,
)
from farro.host.process_limits import ProcessLimits
from farro.host.processes import Exit, Launch, NotStarted, Process
from farro.host.thread_turns import Turns
from support import need

pytestmark = pytest.mark.linux

ENV = {"PATH": os.environ["PATH"]}

# An escaped grandchild: forked twice, in a new session, its parent ended. It writes its PID into a FIFO.
STUBBORN = 'trap "" TERM; echo $$ > "$FIFO"; exec sleep 1000'
ESCAPE = "setsid sh -c 'sh -c \"$STUBBORN\" & exit' & "


class Starter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)

    def try_start(self, *argv: str, env: Mapping[str, str] = {}, **options: Any) -> Process | NotStarted:
        self.count += 1
        how = {name: options.pop(name) for name in ("limits", "pass_fds", "spawn") if name in options}
        launch = Launch(
            argv=argv,
            stdout=self.out(),
            stderr=self.out("err"),
            env={**ENV, "FIFO": str(self.fifo), "STUBBORN": STUBBORN, **env},
            **{"stdin": None, "cwd": str(self.folder), **options},
        )
        return processes.start(launch, **how)

    def start(self, *argv: str, **options: Any) -> Process:
        started = self.try_start(*argv, **options)
        assert isinstance(started, Process), started
        return started

    def run(self, *argv: str, **options: Any) -> Exit:
        ended = self.start(*argv, **options).wait(None)
        assert ended is not None
        return ended

    def out(self, stream: str = "out") -> str:
        return str(self.folder / f"{self.count}.{stream}")

    def said(self) -> bytes:
        return Path(self.out()).read_bytes()

    def told_pid(self) -> int:
        """Block until a process has written its PID into the FIFO."""
        return int(self.fifo.read_text())


@pytest.fixture
def starter(tmp_path: Path) -> Starter:
    return Starter(tmp_path)


@pytest.fixture(params=["posix_spawn", "Popen"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How programs are started: by posix_spawn, or as on machines without it."""
    if request.param == "Popen":
        monkeypatch.setattr(processes, "_HAS_SPAWN", False)
    return str(request.param)


def lives(pid: int) -> bool:
    entry = process_table.entry(pid)
    return entry is not None and entry.alive


# --- starting ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_arguments_reach_the_program_unchanged_and_no_shell_sees_them(starter: Starter) -> None:
    args = ["$HOME", "a b", "; rm -rf /", "`id`", "", "*", "ü"]
    assert starter.run("printf", "%s\\n", *args).code == 0
    assert starter.said().decode() == "".join(arg + "\n" for arg in args)


@pytest.mark.usefixtures("way")
def test_stdin_is_the_file_itself_and_may_be_any_bytes(starter: Starter, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "in").write_bytes(data)
    starter.run("cat", stdin=str(tmp_path / "in"))
    assert starter.said() == data


def test_reopening_stderr_leaves_no_hole_in_it(starter: Starter) -> None:
    starter.run("sh", "-c", "echo a line of some length >&2; echo anew > /dev/stderr; echo and on >&2")
    assert Path(starter.out("err")).read_bytes() == b"anew\nand on\n"


def test_an_archive_on_stdout_is_whole(starter: Starter) -> None:
    """A program seeks backwards if its stdout is a file."""
    script = "import sys, zipfile; zipfile.ZipFile(sys.stdout.buffer, 'w').writestr('a', 'text')"
    starter.run(sys.executable, "-c", script)
    assert zipfile.ZipFile(io.BytesIO(starter.said())).read("a") == b"text"


@pytest.mark.usefixtures("way")
def test_without_stdin_a_program_reads_an_end_at_once(starter: Starter) -> None:
    assert starter.run("cat").code == 0


@pytest.mark.usefixtures("way")
def test_nothing_is_inherited_but_the_three_standard_files(starter: Starter, tmp_path: Path) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        starter.run("ls", "/proc/self/fd")
    finally:
        os.close(leaked)
    assert starter.said().split() == [b"0", b"1", b"2", b"3"]  # 3 is ls reading the folder


@pytest.mark.usefixtures("way")
def test_only_the_given_environment_is_seen(starter: Starter) -> None:
    starter.run("env", env={"X": "1"})
    assert {line.split(b"=")[0] for line in starter.said().splitlines()} == {b"PATH", b"FIFO", b"STUBBORN", b"X"}


@pytest.mark.usefixtures("way")
def test_a_process_leads_its_own_session_without_a_terminal(starter: Starter) -> None:
    process = starter.start("sh", "-c", "cut -d' ' -f5-7 /proc/$$/stat")
    ended = process.wait(None)
    assert ended is not None
    group, session, terminal = starter.said().split()
    assert int(group) == int(session) == process.pid
    assert int(terminal) == 0


@pytest.mark.usefixtures("way")
def test_ignored_signals_of_the_worker_are_not_ignored_by_the_program(starter: Starter) -> None:
    # Python ignores SIGPIPE; a program that inherited this would continue to write after `head` ended.
    starter.run("sh", "-c", "grep SigIgn /proc/$$/status")
    ignored = int(starter.said().split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("argv", "options", "reason", "code"),
    [
        (["no-such-command-here"], {}, "not_found", 127),
        (["/no/such/command"], {}, "not_found", 127),
        (["./plain"], {}, "not_executable", 126),
        (["./no-shebang"], {}, "not_executable", 126),
        (["./lost-interpreter"], {}, "not_executable", 126),
        (["."], {}, "not_executable", 126),
        (["true"], {"cwd": "/no/such/folder"}, "bad_cwd", 126),
        (["true"], {"cwd": "/etc/passwd"}, "bad_cwd", 126),
        (["echo", "a\0b"], {}, "bad_argument", 126),
        (["echo"], {"env": {"a=b": ""}}, "bad_argument", 126),
        (["echo", "x" * 200_000], {}, "too_long", 126),
    ],
)
def test_a_program_that_cannot_start_is_a_result(
    starter: Starter, tmp_path: Path, argv: list[str], options: dict[str, Any], reason: str, code: int
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for name, text in [("no-shebang", "\x01\x02\n"), ("lost-interpreter", "#!/no/such/interpreter\n")]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    started = starter.try_start(*argv, **options)
    assert isinstance(started, NotStarted)
    assert (started.reason, started.code, started.passing) == (reason, code, False)


@pytest.mark.parametrize("posix_spawn", [True, False])
def test_a_full_process_table_is_a_transient_error(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, posix_spawn: bool
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(processes, "_HAS_SPAWN", posix_spawn)
    monkeypatch.setattr(processes, "_posix_spawn", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    started = starter.try_start("true")
    assert isinstance(started, NotStarted)
    assert started.passing


def test_another_slot_works_while_a_program_is_started(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, worked = Turns(), threading.Event()
    start = processes._libc.posix_spawn

    def work() -> None:
        with turns.turn():
            worked.set()

    def start_beside(*args: object) -> int:
        threading.Thread(target=work, daemon=True).start()
        assert worked.wait(30)
        return int(start(*args))

    monkeypatch.setattr(processes._libc, "posix_spawn", start_beside)
    with turns.turn():
        assert starter.run("true").code == 0


def test_a_full_disk_is_storage_trouble_and_nothing_is_started(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *, append: bool) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(fs, "create_file", full)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(StorageTrouble):
        starter.try_start("true")


def test_an_existing_output_file_is_never_written_over(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "1.out").write_text("precious")
    with pytest.raises(FileExistsError):
        starter.try_start("echo", "lost")
    assert (tmp_path / "1.out").read_text() == "precious"


# --- waiting -----------------------------------------------------------------------------------------------------


def test_an_exit_code_is_reported(starter: Starter) -> None:
    ended = starter.run("sh", "-c", "exit 7")
    assert (ended.code, ended.signal) == (7, None)


def test_death_by_signal_is_reported_as_shells_do(starter: Starter) -> None:
    ended = starter.run("sh", "-c", "kill -9 $$")
    assert (ended.code, ended.signal) == (137, 9)


def test_resource_use_is_reported(starter: Starter) -> None:
    ended = starter.run(sys.executable, "-c", "sum(range(3_000_000)); x = b'x' * 200_000_000")
    assert ended.user_s > 0
    assert ended.max_rss_kb > 190_000
    assert ended.duration_s > 0


def test_wait_returns_when_its_time_is_over_and_can_go_on(starter: Starter) -> None:
    process = starter.start("cat", str(starter.fifo))
    assert process.wait(0) is None
    assert process.wait(0.01) is None
    starter.fifo.write_text("now\n")
    ended = process.wait(None)
    assert ended is not None
    assert process.wait(0) is ended


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_a_wait_is_woken_by_a_descriptor(starter: Starter, monkeypatch: pytest.MonkeyPatch, with_pidfd: bool) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    process = starter.start("cat", str(starter.fifo))
    wake = os.eventfd(0)
    waker = threading.Thread(target=os.eventfd_write, args=(wake, 1))
    waker.start()
    assert process.wait(None, wake) is None
    waker.join()
    os.close(wake)
    process.end(None, grace_s=0)
    assert process.exit is not None
    # The shell was killed, or its `sleep` was killed a moment before and the shell reports that.
    assert process.exit.code == 128 + signal.SIGKILL


def test_a_process_is_awaited_without_pidfds(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert starter.run("sh", "-c", "exit 3").code == 3
    process = starter.start("cat", str(starter.fifo))
    assert process.wait(0.01) is None
    process.end(None, grace_s=0)


def test_a_process_reaped_by_another_caller_has_still_ended(starter: Starter) -> None:
    process = starter.start("true")
    os.waitpid(process.pid, 0)
    ended = process.wait(None)
    assert ended is not None
    assert ended.code == 255


def test_no_descriptor_stays_open(starter: Starter) -> None:
    before = os.listdir("/proc/self/fd")
    starter.run("true")
    starter.try_start("no-such-command-here")
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- limits ------------------------------------------------------------------------------------------------------


def test_limits_hold_for_the_program_and_its_children(starter: Starter) -> None:
    # It reads the FIFO first: the limits are set after the spawn and must hold before it continues.
    process = starter.start(
        "sh",
        "-c",
        'read go < "$FIFO"; sh -c "ulimit -v; ulimit -t; ulimit -f"',
        limits=ProcessLimits(address_space=1 << 30, cpu_s=77, file_size=1 << 20, processes=5000),
    )
    assert resource.prlimit(process.pid, resource.RLIMIT_NPROC) == (5000, 5000)
    starter.fifo.write_text("go\n")
    assert process.wait(None) is not None
    assert starter.said().split() == [b"1048576", b"77", b"2048"]


def test_a_limit_that_cannot_be_set_means_not_started(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, limits: ProcessLimits) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(process_limits, "apply", refuse)
    started = starter.try_start("sleep", "1000", limits=ProcessLimits(cpu_s=1))
    assert isinstance(started, NotStarted)
    assert started.reason == "not_supported"


# --- ending trees ------------------------------------------------------------------------------------------------


def test_a_tree_is_asked_to_end_and_gets_its_time(starter: Starter) -> None:
    # Report only after the child runs: a process that is just executing `sleep` may lose its SIGTERM.
    script = 'trap "echo bye; exit 0" TERM; sleep 1000 & sleep 0.05; echo $$ > "$FIFO"; while :; do wait; done'
    process = starter.start("sh", "-c", script)
    starter.told_pid()
    assert process.end(None, grace_s=30) == ()
    assert process.exit is not None
    assert process.exit.code == 0
    assert starter.said() == b"bye\n"


def test_a_tree_that_ignores_sigterm_is_killed_after_the_grace(starter: Starter) -> None:
    process = starter.start("sh", "-c", 'trap "" TERM; echo $$ > "$FIFO"; exec sleep 1000')
    starter.told_pid()
    assert process.end(None, grace_s=0.05) == ()
    assert process.exit is not None
    assert process.exit.signal == signal.SIGKILL


def test_a_stopped_process_is_ended_by_sigterm(starter: Starter) -> None:
    process = starter.start("sh", "-c", 'echo $$ > "$FIFO"; kill -STOP $$')
    os.kill(starter.told_pid(), signal.SIGSTOP)
    assert process.end(None, grace_s=60) == ()
    assert process.exit is not None
    assert process.exit.signal == signal.SIGTERM


def test_a_grandchild_that_left_session_and_parent_is_ended_by_the_marker(starter: Starter) -> None:
    process = starter.start("sh", "-c", ESCAPE + "sleep 1000", env={"FARRO_CLAIM": "claim-1"})
    escaped = starter.told_pid()
    assert lives(escaped)
    assert process.end("claim-1", grace_s=0.05) == ()
    assert not lives(escaped)


def test_a_grandchild_that_cleaned_its_environment_is_ended_as_a_descendant(starter: Starter) -> None:
    script = 'env -i FIFO="$FIFO" setsid sh -c \'echo $$ > "$FIFO"; exec sleep 1000\' & sleep 1000'
    process = starter.start("sh", "-c", script, env={"FARRO_CLAIM": "claim-2"})
    escaped = starter.told_pid()
    assert process.end("claim-2", grace_s=0) == ()
    assert not lives(escaped)


def test_a_tree_that_goes_on_forking_is_ended(starter: Starter) -> None:
    script = 'trap "" TERM; echo $$ > "$FIFO"; while :; do setsid sh -c "sleep 1000 & sleep 0.01" & sleep 0.002; done'
    process = starter.start("sh", "-c", script, env={"FARRO_CLAIM": "claim-3"})
    starter.told_pid()
    assert process.end("claim-3", grace_s=0.05) == ()
    assert not any(process_table.carries(entry.pid, "FARRO_CLAIM=claim-3") for entry in process_table.entries())


def test_other_markers_are_left_alone(starter: Starter) -> None:
    process = starter.start("sleep", "1000", env={"FARRO_CLAIM": "claim-10"})
    assert process_tree.end_marked("claim-1") == ()
    assert process_tree.end_marked("laim-10") == ()
    assert process.wait(0) is None
    assert process_tree.end_marked("claim-10") == ()
    assert process.wait(None) is not None


def test_a_watchdog_in_another_process_ends_the_processes_of_a_dead_worker(starter: Starter) -> None:
    """Row 23: processes that outlive their worker are ended by their marker and by the worker's cgroup (below)."""
    worker = (
        "import os, sys\n"
        "from farro.host import processes\n"
        "processes.start(processes.Launch(argv=['sh', '-c', os.environ['SCRIPT']], stdin=None, "
        "stdout=sys.argv[1] + '/o', stderr=sys.argv[1] + '/e', cwd='/', "
        "env={**os.environ, 'FARRO_CLAIM': 'claim-dead'}))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**ENV, "FIFO": str(starter.fifo), "STUBBORN": STUBBORN, "SCRIPT": ESCAPE + "sleep 1000"}
    dead = subprocess.run([sys.executable, "-c", worker, str(starter.folder)], env=env, check=False)
    assert dead.returncode == -9
    escaped = starter.told_pid()
    watchdog = "import sys; from farro.host import process_tree; sys.exit(len(process_tree.end_marked('claim-dead')))"
    subprocess.run([sys.executable, "-c", watchdog], check=True)
    assert not lives(escaped)


def test_the_caller_of_end_marked_is_spared(starter: Starter) -> None:
    script = "from farro.host import process_tree; process_tree.end_marked('claim-own'); print('alive')"
    assert starter.run(sys.executable, "-c", script, env={"FARRO_CLAIM": "claim-own"}).code == 0
    assert starter.said() == b"alive\n"


def test_the_caller_is_ticked_during_the_grace_and_its_exception_ends_the_tree_at_once(starter: Starter) -> None:
    process = starter.start("sh", "-c", STUBBORN)  # without a shell, which may end by the death of its child
    starter.told_pid()
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        if len(turns) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        process.end(None, grace_s=3600, while_waiting=turn, every_s=0.001)
    assert process.exit is not None
    assert process.exit.signal == signal.SIGKILL


def test_a_tree_is_ended_without_pidfds(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    process = starter.start("sh", "-c", ESCAPE + "sleep 1000", env={"FARRO_CLAIM": "claim-5"})
    escaped = starter.told_pid()
    assert process.end("claim-5", grace_s=0.02) == ()
    assert not lives(escaped)


def test_a_process_whose_first_thread_ended_counts_as_living(starter: Starter) -> None:
    script = (
        "import ctypes, os, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "open(os.environ['FIFO'], 'w').write(str(os.getpid()))\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit(2) of one thread
    )
    need(os.uname().machine == "x86_64", "the number of a system call")
    process = starter.start(sys.executable, "-c", script)
    pid = starter.told_pid()
    while (entry := process_table.entry(pid)) is not None and entry.state != "Z":
        os.sched_yield()
    assert lives(pid)
    assert process.end(None, grace_s=0) == ()
    assert not lives(pid)


def test_a_process_keeps_its_marker_during_exec(starter: Starter, tmp_path: Path) -> None:
    """The process executes itself again, thousands of times."""
    script = tmp_path / "again"
    script.write_text('#!/bin/sh\n[ -e "$0.stop" ] || exec "$0"\n')
    script.chmod(0o755)
    process = starter.start(str(script), env={"FARRO_CLAIM": "claim-again"})
    try:
        assert all(process_table.carries(process.pid, "FARRO_CLAIM=claim-again") for _ in range(1000))
        assert process.end("claim-again", grace_s=0) == ()
    finally:
        (tmp_path / "again.stop").touch()


ADOPTING = """
import os, sys
from farro.host import processes, process_tree
assert process_tree.any_left()   # not known before
assert process_tree.adopt_orphans()
assert not process_tree.any_left()
def go(script):
    go.n += 1
    at = sys.argv[1] + f'/a{go.n}'
    p = processes.start(processes.Launch(argv=['sh', '-c', script], stdin=None, stdout=at + 'o', stderr=at + 'e',
                        cwd='/', env={**os.environ, 'FARRO_CLAIM': 'claim-adopt'}))
    assert p.wait(None).code == 0
go.n = 0
go('exit 0')
assert not process_tree.any_left()
go(os.environ['SCRIPT'] + 'exit 0')
pid = int(open(os.environ['FIFO']).read())
assert process_tree.any_left()
assert process_tree.end_marked('claim-adopt') == ()
assert not process_tree.any_left()
assert not os.path.exists(f'/proc/{pid}')   # not even a zombie
go('setsid sh -c "exit 0" & exit 0')         # ends by itself, and becomes a zombie of ours
while process_tree.any_left(): os.sched_yield()
try:
    while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None: os.sched_yield()
except ChildProcessError:
    print('no children')
"""


def test_a_worker_that_adopts_orphans_knows_when_nothing_is_left(starter: Starter) -> None:
    env = {"SCRIPT": ESCAPE}
    ended = starter.run(sys.executable, "-c", ADOPTING, str(starter.folder), env=env)
    assert ended.code == 0, Path(starter.out("err")).read_text()
    assert starter.said() == b"no children\n"


# --- identity ----------------------------------------------------------------------------------------------------


def test_a_living_process_matches_its_identity(starter: Starter) -> None:
    assert process_identity.matches(process_identity.identity())
    assert process_identity.identity()["pid"] == os.getpid()


@pytest.mark.parametrize(
    "change",
    [
        {"start": 12345},
        {"boot_id": "another boot"},
        {"host": "another-host"},
        {"pid_ns": 1},
        {"pid": 0},
        {"pid": -1},
        {"pid": "1"},
        {"pid": True},
        {"start": None},
        {"start": 0},
        {"pid": 4_194_304},
    ],
)
def test_a_changed_identity_matches_and_kills_no_process(starter: Starter, change: dict[str, Any]) -> None:
    process = starter.start("sleep", "1000")
    claimed: dict[str, object] = {**process_identity.identity_of(process.pid), **change}
    assert not process_identity.matches(claimed)
    assert not process_identity.kill_identified(claimed)
    assert process.wait(0) is None
    process.end(None, grace_s=0)


def test_an_identified_process_is_killed_and_then_matches_no_more(starter: Starter) -> None:
    process = starter.start("sleep", "1000")
    claimed = process_identity.identity_of(process.pid)
    assert process_identity.kill_identified(claimed)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not process_identity.matches(claimed)  # a zombie matches no identity
    assert not process_identity.kill_identified(claimed)
    ended = process.wait(None)
    assert ended is not None
    assert ended.signal == signal.SIGKILL
    assert not process_identity.matches(claimed)


def test_a_pid_that_changes_hands_before_the_pin_is_not_killed(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = starter.start("sleep", "1000")
    claimed = process_identity.identity_of(process.pid)
    pin = os.pidfd_open
    before = process_table.entry(process.pid)
    assert before is not None
    stranger = replace(before, start=before.start + 1)

    def change_hands(pid: int) -> int:
        monkeypatch.setattr(process_table, "entry", lambda pid: stranger)
        return pin(pid)

    monkeypatch.setattr(os, "pidfd_open", change_hands)
    assert not process_identity.kill_identified(claimed)
    monkeypatch.undo()
    assert process.wait(0) is None
    process.end(None, grace_s=0)


# --- cgroups -----------------------------------------------------------------------------------------------------

IN_CGROUP = """
import os, sys
from farro.host import cgroup, processes
path = cgroup.own_cgroup()
assert path, 'no cgroup'
assert open('/proc/self/cgroup').read().splitlines()[-1].endswith(os.path.basename(path))
p = processes.start(processes.Launch(argv=['sh', '-c', os.environ['SCRIPT']], stdin=None, stdout=sys.argv[1] + '/o',
                    stderr=sys.argv[1] + '/e', cwd='/', env=dict(os.environ)))
p.wait(None)
print(path, flush=True)
if sys.argv[2] == 'die':
    os.kill(os.getpid(), 9)
assert cgroup.remove_cgroup(path) == (sys.argv[2] == 'leave')
"""
FORGET = 'env -i PATH=$PATH FIFO=$FIFO STUBBORN="$STUBBORN" ' + ESCAPE + "exit"


def has_cgroup() -> bool:
    check = "from farro.host import cgroup as c, processes; p = c.own_cgroup(); print(p and c.remove_cgroup(p))"
    return subprocess.run([sys.executable, "-c", check], capture_output=True, check=True).stdout == b"True\n"


def test_an_escaped_process_dies_with_the_cgroup_of_its_worker(starter: Starter) -> None:
    need(has_cgroup(), "a writable cgroup2 hierarchy")
    env = {**ENV, "FIFO": str(starter.fifo), "STUBBORN": STUBBORN, "SCRIPT": FORGET, "FARRO_CLAIM": "claim-cg"}
    argv = [sys.executable, "-c", IN_CGROUP, str(starter.folder), "die"]
    path = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=False).stdout.decode().strip()
    escaped = starter.told_pid()
    process_tree.end_marked("claim-cg")
    assert lives(escaped)  # no marker, no parent, no session
    assert cgroup.kill_cgroup(path)
    assert not lives(escaped)
    assert cgroup.remove_cgroup(path)
    assert cgroup.kill_cgroup(path)  # a missing cgroup counts as killed
    assert cgroup.remove_cgroup(path)


WORKER = """
import json, sys
from farro.host import worker_processes as enclosure
enclosure.enclose()
print(json.dumps(dict(enclosure.identity())), flush=True)
sys.stdin.read()
enclosure.release()
"""


@pytest.mark.parametrize("other", [{}, {"host": "renamed"}, {"pid_ns": 1, "pid": 1}], ids=["same", "host", "namespace"])
def test_a_live_worker_is_not_ended_for_a_slot_that_left_under_any_host_name(other: dict[str, Any]) -> None:
    need(has_cgroup(), "a writable cgroup2 hierarchy")
    argv = [sys.executable, "-c", WORKER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        told = {**json.loads(worker.stdout.readline()), **other}
        worker_processes.reap([], told)
        worker.stdin.close()
        assert worker.wait(60) == 0, "it was not killed"
    assert not os.path.exists(told["cgroup"])


def test_a_worker_leaves_and_removes_its_own_cgroup(starter: Starter) -> None:
    need(has_cgroup(), "a writable cgroup2 hierarchy")
    env = {**ENV, "SCRIPT": "exit 0"}
    argv = [sys.executable, "-c", IN_CGROUP, str(starter.folder), "leave"]
    path = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    assert not os.path.exists(path)


def test_without_a_cgroup2_hierarchy_there_is_no_cgroup_and_no_noise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cgroup, "_current", lambda: None)
    assert cgroup.own_cgroup() is None
    monkeypatch.setattr(cgroup, "_current", lambda: str(tmp_path / "none"))
    assert cgroup.own_cgroup() is None
    monkeypatch.undo()
    monkeypatch.setattr(cgroup, "_text", lambda path: "tmpfs /tmp tmpfs rw 0 0")
    assert cgroup.own_cgroup() is None


@pytest.mark.parametrize("path", ["/sys/fs/cgroup", "/sys/fs/cgroup/user.slice", "", "/", "farro-1-xyz"])
def test_a_cgroup_that_farro_did_not_make_is_not_touched(path: str) -> None:
    assert not cgroup.kill_cgroup(path)
    assert not cgroup.remove_cgroup(path)


def test_a_child_that_was_never_waited_for_is_known_as_started(starter: Starter) -> None:
    process = starter.start("true")
    assert process.pid in process_tree._started
    process.wait(None)
    assert process.pid not in process_tree._started


def test_a_process_that_ends_as_it_is_started_is_not_taken_for_an_orphan(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread looks for orphans between the fork and the registration of the process."""
    real = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        made: subprocess.Popen[bytes] = real(*args, **options)
        while (entry := process_table.entry(made.pid)) is not None and entry.alive:
            os.sched_yield()
        monkeypatch.setattr(process_table, "children_of_main_thread", lambda: [made.pid])
        other = threading.Thread(target=process_tree.reap_adopted)
        other.start()
        other.join()
        return made

    monkeypatch.setattr(process_tree, "_adopting", True)
    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    process = starter.start("sh", "-c", "exit 7")
    assert isinstance(process, Process)
    ended = process.wait(None)
    assert ended is not None
    assert ended.code == 7
