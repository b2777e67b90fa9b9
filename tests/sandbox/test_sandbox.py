"""Check what a process in the sandbox can do and see, and how it ends.

test_hostile.py checks what it cannot do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from farro.host import process_table, process_tree
from farro.host.processes import Exit, Launch, NotStarted, Process
from farro.sandbox import confinement as limits
from farro.sandbox import leftovers
from farro.sandbox.confinement import Confinement, SharedLimits
from farro.sandbox.levels import Sandbox

pytestmark = pytest.mark.linux


class Box:
    """A folder with an allowed one in it, and the arguments to start a process there."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder, self.sandbox = folder, sandbox
        self.inside = folder / "in"
        self.inside.mkdir()
        self.confinement = Confinement(writable=(str(self.inside),), readable=(str(folder),))
        self.count = 0

    def start(
        self,
        *argv: str,
        stdin: str | int | None = None,
        stdout: int | None = None,
        env: Mapping[str, str] | None = None,
        **more: str,
    ) -> Process | NotStarted:
        self.count += 1
        launch = Launch(
            argv=argv,
            stdin=stdin,
            stdout=str(self.folder / f"{self.count}.out") if stdout is None else stdout,
            stderr=str(self.folder / f"{self.count}.err"),
            cwd=more.get("cwd", str(self.folder)),
            env={"PATH": os.environ["PATH"], "FARRO_CLAIM": f"box-{self.folder}", **(env or {})},
        )
        return self.sandbox.start(launch, confinement=self.confinement)

    def run(self, *argv: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Exit:
        process = self.start(*argv, stdin=stdin, env=env)
        assert isinstance(process, Process), process
        ended = process.wait(60)
        assert ended is not None
        return ended

    @property
    def out(self) -> str:
        return (self.folder / f"{self.count}.out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / f"{self.count}.err").read_text()

    def living(self) -> list[int]:
        claim = f"FARRO_CLAIM=box-{self.folder}"
        return [e.pid for e in process_table.entries() if e.alive and process_table.carries(e.pid, claim)]


@pytest.fixture
def box(tmp_path: Path, sandbox: Sandbox) -> Iterator[Box]:
    made = Box(tmp_path, sandbox)
    yield made
    assert made.living() == []


def test_a_confined_process_writes_only_to_allowed_paths(box: Box) -> None:
    assert box.run("sh", "-c", "echo x > in/file && mkdir in/d && mv in/file in/d && echo y > other").code != 0
    assert (box.inside / "d/file").read_text() == "x\n"
    assert not (box.folder / "other").exists()


def test_stdin_of_a_confined_process_arrives_whole_through_a_pipe(box: Box) -> None:
    (box.folder / "source").write_bytes(b"0123456789abcdef" * (1 << 17))
    assert box.run("sh", "-c", "wc -c; test -p /proc/self/fd/0", stdin=str(box.folder / "source")).code == 0
    assert box.out.strip() == str(1 << 21)


def test_a_confined_process_may_stop_reading_early(box: Box) -> None:
    (box.folder / "source").write_bytes(b"line\n" * (1 << 20))
    assert box.run("head", "-n", "1", stdin=str(box.folder / "source")).code == 0
    assert box.out == "line\n"


def test_a_caller_talks_to_a_confined_process_over_pipes(box: Box) -> None:
    began = len(os.listdir("/proc/self/fd"))
    (reading, writing), (answers, answering) = os.pipe(), os.pipe()
    process = box.start("sh", "-c", 'while read line; do echo "you said $line"; done', stdin=reading, stdout=answering)
    assert isinstance(process, Process), process
    with open(writing, "w") as said, open(answers) as heard:
        for word in ("one", "two"):
            print(word, file=said, flush=True)
            assert heard.readline() == f"you said {word}\n"
        said.close()
        assert heard.read() == ""
    assert process.wait(60) is not None
    assert len(os.listdir("/proc/self/fd")) == began


@pytest.mark.parametrize("fault", ["command", "cwd", "link", "stderr"])
def test_the_pipes_of_a_program_that_does_not_start_are_closed(box: Box, fault: str) -> None:
    (reading, writing), (answers, answering) = os.pipe(), os.pipe()
    if fault == "link":
        box.inside.rmdir()
        box.inside.symlink_to("/etc")
    elif fault == "stderr":
        (box.folder / "1.err").write_text("there already")
    command = "no-such-program" if fault == "command" else "true"
    cwd = str(box.folder / "nowhere") if fault == "cwd" else str(box.folder)
    with contextlib.suppress(FileExistsError):
        assert isinstance(box.start(command, stdin=reading, stdout=answering, cwd=cwd), NotStarted)
    assert os.read(answers, 1) == b""
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)
    os.close(answers)


def test_a_program_behind_a_link_in_a_visible_folder_can_be_run(box: Box) -> None:
    """For example, the Python of a venv under /tmp."""
    shell = shutil.which("sh")
    assert shell is not None
    (box.folder / "program").symlink_to("linked")
    (box.folder / "linked").symlink_to(shell)
    assert box.run(str(box.folder / "program"), "-c", "echo run").code == 0
    assert box.out == "run\n"


def test_an_allowed_file_can_be_written_and_its_neighbours_not(box: Box) -> None:
    (box.folder / "one").write_text("")
    (box.folder / "two").write_text("")
    box.confinement = replace(box.confinement, writable=(str(box.folder / "one"),))
    assert box.run("sh", "-c", "echo x > one && echo x > two").code != 0
    assert (box.folder / "one").read_text() == "x\n"
    assert (box.folder / "two").read_text() == ""


def test_a_protected_path_in_an_allowed_folder_is_read_only(box: Box) -> None:
    (box.inside / ".git").mkdir()
    (box.inside / ".git/config").write_text("text\n")
    (box.inside / "src").mkdir()
    box.confinement = replace(box.confinement, protected=(str(box.inside / ".git"),))
    assert box.run("sh", "-c", "cat in/.git/config && touch in/src/new && touch in/.git/hook").code != 0
    assert box.out == "text\n"
    assert (box.inside / "src/new").exists()
    assert not (box.inside / ".git/hook").exists()


def test_a_folder_that_holds_a_protected_path_cannot_be_moved(box: Box) -> None:
    """Otherwise a step could replace the repository, and the next user of git there would run planted hooks."""
    repository = box.inside / "a/repo"
    (repository / ".git").mkdir(parents=True)
    (repository / ".git/config").write_text("text\n")
    (repository / "file").write_text("text\n")
    box.confinement = replace(box.confinement, protected=(str(repository / ".git"),))
    for script in ("mv in/a/repo in/gone", "mv in/a in/gone"):
        assert (
            box.run("sh", "-c", f"{script}; mkdir -p in/a/repo/.git && echo planted > in/a/repo/.git/config").code != 0
        )
    assert (repository / ".git/config").read_text() == "text\n"
    assert box.run("sh", "-c", "echo new > in/a/repo/file").code == 0
    assert (repository / "file").read_text() == "new\n"


def test_a_hidden_path_cannot_be_read(box: Box) -> None:
    (box.folder / "secrets").mkdir()
    (box.folder / "secrets/key").write_text("secret\n")
    (box.folder / "key").write_text("secret\n")
    hidden = (str(box.folder / "secrets"), str(box.folder / "key"))
    box.confinement = replace(box.confinement, hidden=hidden)
    box.run("sh", "-c", "cat secrets/key; cat key; cat secrets/*; echo done")
    assert box.out == "done\n"


def test_a_confined_process_has_its_own_temporary_folder(box: Box) -> None:
    (box.folder / "tmp").mkdir()
    box.confinement = replace(box.confinement, tmp=str(box.folder / "tmp"))
    assert box.run("sh", "-c", 'echo "$TMPDIR"; mktemp; echo x > "$TMPDIR/mine"').code == 0
    assert box.out.splitlines()[0] == str(box.folder / "tmp")
    assert (box.folder / "tmp/mine").read_text() == "x\n"


def test_variables_of_a_step_do_not_affect_the_building_of_its_sandbox(box: Box) -> None:
    """With variables like LD_PRELOAD a plan could run its own code before the sandbox is built."""
    env = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(box.folder / "trace"), "EMPTY": "", "LINES": "a\n b=c"}
    assert box.run("sh", "-c", 'echo "$LD_DEBUG:${EMPTY-unset}:$LINES"', env=env).code == 0
    assert box.out.endswith("libs::a\n b=c\n")  # after the loader's own output
    assert list(box.folder.glob("trace*")) == []


def test_variables_of_a_step_appear_in_no_argument(box: Box) -> None:
    """Arguments can be read by every user of the machine."""
    process = box.start("sleep", "60", env={"KEY": "canary-0815"})
    assert isinstance(process, Process)
    try:
        said = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in {process.pid, *box.living()}]
        assert not any(b"canary-0815" in words for words in said)
    finally:
        process.end(None, grace_s=0)


@pytest.mark.parametrize(("name", "value"), [("A", "x\0--bind\0/\0/"), ("A\0--bind", "x"), ("A=B", "x")])
def test_an_invalid_variable_is_refused(box: Box, name: str, value: str) -> None:
    came = box.start("touch", "opened", env={name: value})
    assert isinstance(came, NotStarted)
    assert came.reason == "bad_argument"
    assert not (box.folder / "opened").exists()


def test_bubblewrap_follows_no_link_that_a_step_left_in_its_tmp(level_a: Sandbox) -> None:
    """A bind mount below /tmp needs a folder there; bubblewrap sees the whole machine (/oldroot) when it creates it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home, tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        folder = Path(home, "deep")
        folder.mkdir()
        box = Box(folder, level_a)
        (folder / "tmp").mkdir()
        box.confinement = replace(box.confinement, tmp=str(folder / "tmp"))
        (folder / "tmp" / Path(home).name).symlink_to(f"/oldroot{outside}")
        box.run("true")
        assert list(Path(outside).iterdir()) == []
        with tempfile.NamedTemporaryFile(dir="/tmp") as program:
            (folder / "tmp" / Path(program.name).name).symlink_to(f"/oldroot{outside}/planted")
            box.confinement = replace(box.confinement, readable=(str(folder), program.name))
            came = box.start("true")
            assert isinstance(came, NotStarted)
            assert came.reason == "refused"
        assert list(Path(outside).iterdir()) == []


def test_a_confined_process_has_and_gains_no_capability(box: Box) -> None:
    assert box.run("cat", "/proc/self/status").code == 0
    told = dict(line.split(":\t") for line in box.out.splitlines() if ":\t" in line)
    assert {told[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")


def test_a_confined_process_inherits_three_descriptors(box: Box) -> None:
    assert box.run("sh", "-c", "ls /proc/$$/fd").code == 0
    assert set(box.out.split()) - {"0", "1", "2"} <= {"10", "255"}  # a shell's own


def test_ordinary_programs_work_in_the_sandbox(box: Box) -> None:
    """Use threads, child processes, pipes, socket pairs, links, modes, times, and extended attributes if possible."""
    script = """
import os, socket, subprocess, tempfile, threading, shutil
os.chdir("in")
thread = threading.Thread(target=lambda: open("thread", "w").close()); thread.start(); thread.join()
assert subprocess.run(["cat"], input=b"x", capture_output=True).stdout == b"x"
left, right = socket.socketpair(); left.send(b"y"); assert right.recv(1) == b"y"
open("a", "w").write("a"); os.chmod("a", 0o600); os.utime("a", (1, 1)); os.link("a", "b"); os.symlink("a", "c")
os.mkdir("d"); os.rename("b", "d/b"); os.truncate("a", 0); os.mkfifo("p"); shutil.copytree("d", "e"); shutil.rmtree("e")
with open("lock", "w") as file:
    import fcntl; fcntl.flock(file, fcntl.LOCK_EX)
"""
    ended = box.run(sys.executable, "-c", script)
    assert (ended.code, box.err) == (0, "")
    assert (box.inside / "thread").exists()


def test_the_network_is_available_if_allowed(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as caller:
                caller.sendall(b"hello")

        greeter = threading.Thread(target=greet)
        greeter.start()
        port = server.getsockname()[1]
        script = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(9).decode())"
        assert box.run(sys.executable, "-c", script).code != 0
        box.confinement = replace(box.confinement, network=True)
        assert box.run(sys.executable, "-c", script).code == 0
        assert box.out == "hello\n"
        greeter.join()


def test_exit_code_and_resource_use_are_reported(box: Box) -> None:
    ended = box.run("sh", "-c", "exit 7")
    assert (ended.code, ended.signal) == (7, None)
    assert box.run("sh", "-c", "kill -9 $$").code == 137


def test_a_confined_process_gets_sigterm_and_its_grace(box: Box) -> None:
    process = box.start("sh", "-c", 'trap "echo bye; exit 3" TERM; echo ready > in/ready; while :; do sleep 0.01; done')
    assert isinstance(process, Process)
    until = time.monotonic() + 60
    while not (box.inside / "ready").exists() and time.monotonic() < until:
        time.sleep(0.005)
    assert process.end(f"box-{box.folder}", grace_s=30) == ()
    assert process.exit is not None
    assert process.exit.code == 3
    assert box.out == "bye\n"


def test_a_process_that_ignores_sigterm_is_killed_with_its_tree(box: Box) -> None:
    process = box.start("sh", "-c", 'trap "" TERM; setsid sleep 1000 & echo x > in/ready; while :; do sleep 0.01; done')
    assert isinstance(process, Process)
    until = time.monotonic() + 60
    while not (box.inside / "ready").exists() and time.monotonic() < until:
        time.sleep(0.005)
    assert process.end(f"box-{box.folder}", grace_s=0.05) == ()
    assert box.living() == []


def test_on_level_a_a_confined_process_dies_with_its_starter(box: Box) -> None:
    if box.sandbox.level != "A":
        return
    processes: list[Process | NotStarted] = []

    def begin() -> None:
        processes.append(box.start("sh", "-c", "echo > in/ready; sleep 1000"))
        until = time.monotonic() + 60
        while not (box.inside / "ready").exists() and time.monotonic() < until:
            time.sleep(0.005)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()  # the thread that started it has ended
    assert isinstance(processes[0], Process)
    ended = processes[0].wait(60)
    assert ended is not None
    assert ended.signal == signal.SIGKILL


@pytest.mark.parametrize(("command", "reason"), [("no-such-program", "not_found"), ("./in", "not_found")])
def test_a_confined_program_that_cannot_start_is_reported(box: Box, command: str, reason: str) -> None:
    came = box.start(command)
    assert isinstance(came, NotStarted)
    assert came.reason == reason


def test_a_working_folder_that_cannot_be_entered_is_reported(box: Box) -> None:
    came = box.start("true", cwd=str(box.folder / "nowhere"))
    assert isinstance(came, NotStarted)
    assert came.reason == "bad_cwd"


def test_an_allowed_path_that_was_swapped_for_a_link_is_not_opened(box: Box) -> None:
    box.inside.rename(box.folder / "moved")
    box.inside.symlink_to("/etc")
    began = len(os.listdir("/proc/self/fd"))
    (box.folder / "source").write_text("x")
    came = box.start("true", stdin=str(box.folder / "source"))
    assert isinstance(came, NotStarted)
    assert came.reason == "refused"
    until = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > began and time.monotonic() < until:
        time.sleep(0.005)
    assert len(os.listdir("/proc/self/fd")) == began


def test_starting_many_leaves_no_descriptor_open(box: Box) -> None:
    box.run("true")
    began = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        box.run("true")
    assert len(os.listdir("/proc/self/fd")) == began


def test_a_disabled_sandbox_explains_what_that_means() -> None:
    sandbox = Sandbox.available("none")
    assert (sandbox.level, sandbox.probes) == ("none", ())
    assert any("writing anywhere" in gap for gap in sandbox.gaps())


def test_without_bubblewrap_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from farro.sandbox import levels as module

    monkeypatch.setattr(module, "find_bwrap", lambda: None)
    found = module._available.__wrapped__("A", 0)
    assert found.level == "none"
    assert "bubblewrap is not installed" in found.probes[0].why


def test_the_error_of_bubblewrap_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farro.sandbox import levels as module

    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(module, "find_bwrap", lambda: str(fake))
    found = module._available.__wrapped__("auto", 0)
    assert "setting up uid map: Permission denied" in found.probes[0].why
    assert found.level in ("B", "none")


# Fails like bubblewrap when a mount vanishes: after it reported its child, which has already ended or still waits to be
# released. Later calls run the real bubblewrap.
UNMOUNTED = """#!{python}
import os, select, sys
with open(__file__ + ".tries", "a") as tries:
    tries.write("x")
    if tries.tell() > {fails}:
        os.execv("{bwrap}", ["bwrap", *sys.argv[1:]])
if "--info-fd" in sys.argv:
    info, block = (int(sys.argv[sys.argv.index(name) + 1]) for name in ("--info-fd", "--block-fd"))
    child = os.fork()
    if child == 0:
        {gone} or select.select([block], [], [])
        os._exit(1)
    if {gone}:
        os.waitpid(child, 0)
    os.write(info, b'{{"child-pid": %d}}' % child)
    os.close(info)
    {gone} or os.waitpid(child, 0)
sys.exit('bwrap: Unable to apply mount flags: remount "/newroot/media/stick": No such file or directory')
"""


def fails_first(fails: int, folder: Path, sandbox: Sandbox, *, gone: bool = False) -> str:
    fake = folder / "bwrap"
    fake.write_text(UNMOUNTED.format(python=sys.executable, fails=fails, bwrap=sandbox.bwrap, gone=gone))
    fake.chmod(0o755)
    return str(fake)


def test_a_mount_that_vanishes_during_the_probe_does_not_disable_level_a(
    tmp_path: Path, level_a: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farro.sandbox import levels as module

    fake = fails_first(3, tmp_path, level_a)
    monkeypatch.setattr(module, "find_bwrap", lambda: fake)
    assert module._available.__wrapped__("auto", os.geteuid()).level == "A"


@pytest.mark.parametrize("gone", [False, True])
def test_a_mount_that_vanishes_during_the_start_fails_no_step(gone: bool, tmp_path: Path, level_a: Sandbox) -> None:
    box = Box(tmp_path, replace(level_a, bwrap=fails_first(3, tmp_path, level_a, gone=gone)))
    box.confinement = replace(box.confinement, memory_bytes=1 << 30)  # a limit for a process that may have ended
    (tmp_path / "source").write_text("read\n")
    assert box.run("cat", stdin=str(tmp_path / "source")).code == 0
    assert (box.out, box.err) == ("read\n", "")
    assert box.living() == []


def test_a_sandbox_that_cannot_be_built_runs_nothing_and_says_why(tmp_path: Path, level_a: Sandbox) -> None:
    box = Box(tmp_path, replace(level_a, bwrap=fails_first(99, tmp_path, level_a)))
    came = box.start("touch", "in/file")
    assert isinstance(came, NotStarted)
    assert "the sandbox could not be built: bwrap: Unable to apply mount flags" in came.message
    assert (tmp_path / "bwrap.tries").read_text() == "x" * 5
    assert not (box.inside / "file").exists()
    assert box.living() == []


def test_stdin_is_closed_if_the_output_cannot_be_created(tmp_path: Path, level_a: Sandbox) -> None:
    box = Box(tmp_path, level_a)
    (tmp_path / "source").write_text("read\n")
    (tmp_path / "1.out").write_text("there already")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileExistsError):
        box.start("cat", stdin=str(tmp_path / "source"))
    for thread in threading.enumerate():
        if thread.name == "stdin":  # it copies the file into the pipe
            thread.join()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_without_free_inodes_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files take no bytes, but a disk without free inodes takes no more of them."""
    left = [20_000]
    free = limits._free(str(tmp_path))[0]
    monkeypatch.setattr(limits, "_free", lambda path: (free, left[0]))
    made = SharedLimits(processes=None, memory_bytes=None, disk=str(tmp_path), free_bytes=0, group=False)
    assert made.exceeded(os.getpid()) is None
    left[0] = 9_000
    told = made.exceeded(os.getpid())
    assert told is not None
    assert (told.category, "9000 more files" in told.message) == ("disk_full", True)


def test_free_inodes_are_counted_where_the_filesystem_reports_them(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    assert limits._free(str(tmp_path))[1] == pytest.approx(status.f_favail or limits._NODES, abs=100_000)


IN_A_CONTAINER = """
import struct, subprocess, threading
from farro.sandbox import syscalls as kernel_calls, leftovers as strays

def filtered():
    kernel_calls.no_new_privileges()
    kernel_calls.load_filter(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # allows everything

def started():
    found.append(subprocess.Popen(["sleep", "60"]))

found = []
filtered()  # as a container's runtime does, before anything of ours runs
started()
confined = threading.Thread(target=lambda: (filtered(), started()))
confined.start()
confined.join()
print(*(strays.confined(process.pid) for process in found))
for process in found:
    process.kill()
    process.wait()
"""


def test_a_container_with_a_seccomp_filter_makes_no_process_a_stray(level_b: Sandbox) -> None:
    """Background processes of an unconfined plan once ended together with a confined plan."""
    told = subprocess.run([sys.executable, "-c", IN_A_CONTAINER], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True"]


def test_processes_left_by_two_calls_of_one_job_end_with_the_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents of one plan share a marker: the end of the first must not end the daemon of the second."""
    marked = subprocess.Popen(["sleep", "60"], env={"FARRO_CLAIM": "both"})
    try:
        until = time.monotonic() + 60
        while not process_table.carries(marked.pid, "FARRO_CLAIM=both") and time.monotonic() < until:
            time.sleep(0.005)  # the process has started before the kernel shows its environment
        monkeypatch.setattr(process_tree, "reap_adopted", lambda: [marked.pid] if marked.poll() is None else [])
        monkeypatch.setattr(leftovers, "confined", lambda pid: True)
        leftovers.opened("both")
        leftovers.opened("both")
        leftovers.end("both")
        assert marked.poll() is None
        leftovers.end("both")
        assert marked.wait(20) == -signal.SIGKILL
    finally:
        marked.kill()
        marked.wait()
