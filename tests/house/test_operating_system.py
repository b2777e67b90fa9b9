"""Check that only farro.host and farro.sandbox depend on an operating system: Windows can import all other modules.

Two checks: the source uses no POSIX-only name, and every module can be imported after the POSIX-only modules, functions
and constants were removed from Python.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT

SOURCE = Path(ROOT) / "src"
SYSTEM_PACKAGES = ("farro/host/", "farro/sandbox/")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = _words(
    "fcntl pwd grp resource termios tty pty posix readline syslog curses spwd crypt platform _posixsubprocess"
)
ATTRIBUTES = {
    "os": _words("""
        O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_DIRECT O_NONBLOCK O_PATH O_TMPFILE O_NOCTTY O_DSYNC O_SYNC RWF_DSYNC
        EFD_CLOEXEC ST_RDONLY name geteuid getuid getgid getegid getpgid getpgrp setpgid setsid getsid killpg fork
        forkpty register_at_fork pread pwrite preadv pwritev posix_fallocate fchmod fchown chown lchown mkfifo mknod
        sched_getaffinity sched_setaffinity posix_spawn posix_spawnp pidfd_open P_ALL P_PID WNOHANG WNOWAIT WEXITED
        wait3 wait4 waitid uname getloadavg statvfs fstatvfs sync syncfs memfd_create eventfd setxattr getxattr sysconf
        ttyname openpty sendfile splice copy_file_range getpriority setpriority nice initgroups setgroups chroot fchdir
        WIFSIGNALED WTERMSIG WEXITSTATUS WIFEXITED"""),
    "signal": _words("""
        SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGPIPE SIGCHLD SIGSTOP SIGCONT SIGALRM SIGWINCH SIGTSTP SIGQUIT SIGXCPU
        SIGXFSZ pthread_sigmask sigwait sigtimedwait sigwaitinfo setitimer alarm pidfd_send_signal SIG_BLOCK
        SIG_UNBLOCK SIG_SETMASK siginterrupt"""),
    "select": _words("""
        poll epoll kqueue POLLIN POLLOUT POLLPRI POLLERR POLLHUP EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLET"""),
    "socket": _words("AF_UNIX SO_PEERCRED SCM_RIGHTS SO_REUSEPORT"),
    "time": _words("CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime clock_gettime_ns tzset"),
    "sys": frozenset(["platform"]),
}
FOLDERS = ("/proc/", "/sys/")


def test_only_host_and_sandbox_name_an_operating_system() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in _sources()
        for line, name in _named(ast.parse(path.read_text()))
    ]
    assert found == [], (
        "these places name something that not every operating system has; give farro.host a plain function for it "
        "(host/machine.py, waiting.py, signals.py, fs.py) and call that:\n" + "\n".join(found)
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import os\nos.pread(3, 1, 0)", "os.pread"),
        ("from signal import SIGKILL", "signal.SIGKILL"),
        ("import fcntl", "fcntl"),
        ("def lazy() -> None:\n    import pwd", "pwd"),
        ("open('/proc/self/status')", "/proc/self/status"),
        ("fd = 3\nopen(f'/proc/self/fd/{fd}')", "/proc/self/fd/"),
    ],
)
def test_the_check_finds_posix_names(source: str, name: str) -> None:
    assert [found for _, found in _named(ast.parse(source))] == [name]


def test_every_module_can_be_imported_without_posix() -> None:
    asked = {
        "modules": [_module(path) for path in _sources(everywhere=True)],
        "hidden_modules": sorted(MODULES - {"platform", "posix"}),
        "hidden": {name: sorted(names - {"name"}) for name, names in ATTRIBUTES.items() if name not in ("sys", "time")},
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _IMPORTER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failures: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert failures == {}, "cannot be imported without POSIX:\n" + "\n".join(map(": ".join, failures.items()))


# Imports everything first, so that the standard library and farro's dependencies are complete; then removes what
# Windows does not have, and imports farro's modules again.
_IMPORTER = """
import importlib, json, os, sys, traceback, types

asked = json.load(sys.stdin)
for name in asked["modules"]:
    importlib.import_module(name)
for name in [name for name in sys.modules if name == "farro" or name.startswith("farro.")]:
    del sys.modules[name]


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in asked["hidden_modules"]:
            raise ImportError(f"{name} is hidden: only POSIX has it")


for name in asked["hidden_modules"]:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for name, attributes in asked["hidden"].items():
    module = importlib.import_module(name)
    for attribute in attributes:
        if hasattr(module, attribute):
            delattr(module, attribute)
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.platform = "win32"

failures = {}
for name in asked["modules"]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        failures[name] = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
print(json.dumps(failures))
sys.stdout.flush()
os._exit(0)  # an interpreter that ends in order may need what is hidden
"""


def _sources(*, everywhere: bool = False) -> Iterator[Path]:
    for path in sorted((SOURCE / "farro").rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if "demo/repository" not in name and (everywhere or not name.startswith(SYSTEM_PACKAGES)):
            yield path


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def _named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return each name that only one operating system has, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if node.module in MODULES:
                yield node.lineno, str(node.module)
            known = ATTRIBUTES.get(node.module or "", frozenset())
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names if alias.name in known)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in ATTRIBUTES.get(node.value.id, ()):
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(FOLDERS):
            yield node.lineno, node.value
