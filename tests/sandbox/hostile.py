"""A program that tries one way out of its sandbox: `hostile.py WAY`. Exit 0: it got out, as far as it can tell.

$HOSTILE describes its surroundings (paths, a victim's PID, ports) as JSON. Standard library only: it runs confined.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

GROUND: dict[str, Any] = json.loads(os.environ["HOSTILE"])
IN, OUT, VICTIM = GROUND["in"], GROUND["out"], GROUND["victim"]
FILE = f"{OUT}/file"
WAYS: dict[str, Callable[[], object]] = {}

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def way(function: Callable[[], object]) -> Callable[[], object]:
    WAYS[function.__name__] = function
    return function


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(number: int, *args: Any) -> int:
    return checked(libc.syscall(ctypes.c_long(number), *args))


def number(x86: int, arm: int) -> int:
    return x86 if X86 else arm


def append(path: str) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(b"hostile\n")


def first_that_works(*tries: Callable[[], object]) -> None:
    errors: list[OSError] = []
    for one in tries:
        try:
            one()
        except OSError as error:
            errors.append(error)
        else:
            return
    raise errors[-1] if errors else FileNotFoundError("there is nothing to try")


def pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


# --- files -----------------------------------------------------------------------------------------------------------


@way
def create() -> None:
    append(f"{OUT}/new")


@way
def overwrite() -> None:
    append(FILE)


@way
def symlink() -> None:
    os.symlink(FILE, f"{IN}/link")
    append(f"{IN}/link")


@way
def symlink_to_a_folder() -> None:
    os.symlink(OUT, f"{IN}/link")
    append(f"{IN}/link/new")


@way
def hardlink() -> None:
    os.link(FILE, f"{IN}/link")
    append(f"{IN}/link")


@way
def hardlink_of_an_open_file() -> None:
    fd = os.open(FILE, os.O_RDONLY)
    checked(libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, f"{IN}/link".encode(), 0x400))
    append(f"{IN}/link")


@way
def rename_away() -> None:
    os.rename(FILE, f"{IN}/stolen")


@way
def rename_over() -> None:
    append(f"{IN}/mine")
    os.rename(f"{IN}/mine", FILE)


@way
def rename_exchange() -> None:
    append(f"{IN}/mine")
    checked(libc.renameat2(-100, f"{IN}/mine".encode(), -100, FILE.encode(), 2))


@way
def truncate() -> None:
    os.truncate(FILE, 0)


@way
def unlink() -> None:
    os.unlink(FILE)


@way
def mkdir() -> None:
    os.mkdir(f"{OUT}/folder")


@way
def rmdir() -> None:
    os.rmdir(f"{OUT}/empty")


@way
def chmod() -> None:
    os.chmod(FILE, 0o600)


@way
def chmod_of_an_open_file() -> None:
    os.fchmod(os.open(FILE, os.O_RDONLY), 0o600)


@way
def chown() -> None:
    os.chown(FILE, 1, 1)


@way
def utime() -> None:
    os.utime(FILE, (1, 1))


@way
def xattr() -> None:
    os.setxattr(FILE, "user.hostile", b"was here")


@way
def flags() -> None:
    fd = os.open(FILE, os.O_RDONLY)
    held = struct.unpack("=l", fcntl.ioctl(fd, 0x80086601, struct.pack("=l", 0)))[0]
    fcntl.ioctl(fd, 0x40086602, struct.pack("=l", held ^ 0x80))


@way
def mknod() -> None:
    os.mknod(f"{IN}/disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))


# --- /proc and descriptors -------------------------------------------------------------------------------------------


@way
def proc_self_root() -> None:
    append(f"/proc/self/root{FILE}")


@way
def proc_self_cwd() -> None:
    os.chdir(IN)
    append("/proc/self/cwd/../out/file")


@way
def proc_pid_root() -> None:
    first_that_works(*(lambda pid=pid: append(f"/proc/{pid}/root{FILE}") for pid in [*pids(), str(VICTIM)]))


@way
def proc_pid_cwd() -> None:
    append(f"/proc/{VICTIM}/cwd/file")


@way
def proc_pid_fd() -> None:
    """The file that the victim has open."""
    append(f"/proc/{VICTIM}/fd/{GROUND['held_fd']}")


@way
def proc_pid_mem() -> None:
    with open(f"/proc/{VICTIM}/mem", "r+b", buffering=0) as memory:
        memory.seek(GROUND["address"])
        memory.write(b"HOSTILE!")


@way
def proc_sys() -> None:
    path = "/proc/sys/kernel/panic"
    with open(path, encoding="ascii") as file:
        value = file.read()
    with open(path, "w", encoding="ascii") as file:
        file.write(value)


@way
def inherited_descriptors() -> None:
    first_that_works(*(lambda fd=fd: os.write(fd, b"hostile\n") for fd in range(3, 256)))


@way
def stdin_opened_again() -> None:
    if not stat.S_ISREG(os.fstat(0).st_mode):
        raise PermissionError("it is not the file")
    first_that_works(
        lambda: append("/proc/self/fd/0"),
        lambda: os.ftruncate(os.open("/proc/self/fd/0", os.O_RDWR), 0),
    )


@way
def stdin_changed() -> None:
    os.fchmod(0, 0o600)
    os.utime(0, (1, 1))
    if not stat.S_ISREG(os.fstat(0).st_mode):
        raise PermissionError("it is not the file")


# --- the kernel, and other processes ---------------------------------------------------------------------------------


@way
def mount() -> None:
    os.mkdir(f"{IN}/m")
    checked(libc.mount(b"none", f"{IN}/m".encode(), b"tmpfs", 0, None))
    libc.umount2(f"{IN}/m".encode(), 2)


@way
def mount_by_new_calls() -> None:
    os.close(syscall(430, b"tmpfs", 0))


@way
def userns() -> None:
    checked(libc.unshare(0x10000000))


@way
def userns_by_clone() -> None:
    if syscall(number(56, 220), ctypes.c_long(0x10000000 | signal.SIGCHLD), None, None, None, None) == 0:
        os._exit(0)


@way
def userns_by_clone3() -> None:
    args = struct.pack("=8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    if syscall(435, args, ctypes.c_long(len(args))) == 0:
        os._exit(0)


@way
def mount_namespace() -> None:
    checked(libc.unshare(0x00020000))


@way
def setns() -> None:
    checked(libc.setns(os.open(f"/proc/{VICTIM}/ns/net", os.O_RDONLY), 0))


@way
def chroot() -> None:
    os.chroot(IN)


@way
def ptrace() -> None:
    checked(libc.ptrace(ctypes.c_long(16), ctypes.c_long(VICTIM), None, None))
    os.waitpid(VICTIM, 0x40000000)
    libc.ptrace(ctypes.c_long(17), ctypes.c_long(VICTIM), None, None)


@way
def process_vm_writev() -> None:
    buffer = ctypes.create_string_buffer(b"HOSTILE!", 8)
    local = struct.pack("@PN", ctypes.addressof(buffer), 8)
    remote = struct.pack("@PN", GROUND["address"], 8)
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    syscall(number(311, 271), ctypes.c_long(VICTIM), local, one, remote, one, none)


@way
def pidfd_getfd() -> None:
    fd = syscall(438, os.pidfd_open(VICTIM), GROUND["held_fd"], 0)
    os.write(fd, b"hostile\n")


@way
def kill() -> None:
    os.kill(VICTIM, signal.SIGKILL)


@way
def limits_of_another() -> None:
    """A process without free descriptors can do nothing more."""
    resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (0, 0))


@way
def setuid_program() -> None:
    """Leave it in a writable folder: a user who runs it later becomes the worker's user."""

    def marked(make: Callable[[str], object]) -> None:
        path = f"{IN}/setuid"
        with contextlib.suppress(OSError):
            os.unlink(path)
        make(path)
        if not os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise PermissionError("the mark is not there")

    def by_chmod(mode: int) -> Callable[[str], object]:
        return lambda path: (append(path), os.chmod(path, mode))

    def by_fchmod(path: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.fchmod(fd, 0o4755)

    def by_openat2(path: str) -> None:
        how = struct.pack("<QQQ", os.O_WRONLY | os.O_CREAT, 0o4755, 0)
        syscall(437, -100, path.encode(), how, len(how))

    os.umask(0)
    first_that_works(
        lambda: marked(by_chmod(0o4755)),
        lambda: marked(by_chmod(0o2755)),
        lambda: marked(by_fchmod),
        lambda: marked(lambda path: os.open(path, os.O_WRONLY | os.O_CREAT, 0o4755)),
        lambda: marked(lambda path: os.mknod(path, stat.S_IFREG | 0o4755)),
        lambda: marked(by_openat2),
    )


@way
def lock_of_farro() -> None:
    """A process that holds this lock blocks every worker."""
    fcntl.flock(os.open(GROUND["lock"], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


@way
def keys() -> None:
    syscall(number(250, 219), ctypes.c_long(0), ctypes.c_long(-4), ctypes.c_long(1), 0, 0)


@way
def io_uring() -> None:
    os.close(syscall(425, ctypes.c_long(1), ctypes.create_string_buffer(256)))


@way
def snapshot() -> None:
    """Create a subvolume in a writable folder and snapshot it into a forbidden one (btrfs only)."""

    def call(folder: str, number: int, name: bytes, source: int = 0) -> None:
        fcntl.ioctl(os.open(folder, os.O_RDONLY), number, bytearray(struct.pack("q4088s", source, name)))

    call(IN, 0x5000940E, b"part")
    append(f"{IN}/part/planted")
    call(OUT, 0x50009401, b"planted", os.open(f"{IN}/part", os.O_RDONLY))


# --- sockets ---------------------------------------------------------------------------------------------------------


@way
def unix_socket() -> None:
    talk = socket.socket(socket.AF_UNIX)
    talk.connect(GROUND["socket"])
    talk.sendall(b"hostile\n")


@way
def abstract_socket() -> None:
    talk = socket.socket(socket.AF_UNIX)
    talk.connect(GROUND["abstract"].encode().replace(b"@", b"\0"))
    talk.sendall(b"hostile\n")


@way
def unix_datagram() -> None:
    """Send from one socket of a pair, which needs no socket(2), elsewhere; the kernel accepts a raw one, too."""

    def by(kind: socket.SocketKind) -> None:
        talk, _ = socket.socketpair(socket.AF_UNIX, kind)
        talk.sendto(b"hostile\n", GROUND["datagrams"])

    first_that_works(lambda: by(socket.SOCK_DGRAM), lambda: by(socket.SOCK_RAW))


@way
def tcp() -> None:
    talk = socket.create_connection(("127.0.0.1", GROUND["tcp"]), timeout=5)
    talk.sendall(b"hostile\n")


@way
def udp() -> None:
    talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    talk.sendto(b"hostile\n", ("127.0.0.1", GROUND["udp"]))
    raise TimeoutError("nobody says whether it arrived")


# --- reading what was not given ---------------------------------------------------------------------------------------


def secret_in(text: bytes) -> None:
    """Take what was read; the secret is put together here, so that this process's own memory does not hold it."""
    if GROUND["secret"][::-1].encode() not in text:
        raise FileNotFoundError("it holds no secret")


def look_into(path: str) -> None:
    with open(path, "rb") as file:
        secret_in(file.read(1 << 20))


def memory_of(pid: int, address: int | None = None) -> bytes:
    if address is None:
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            address = int(maps.readline().split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(8)


@way
def read_ssh_key() -> None:
    look_into(f"{GROUND['home']}/.ssh/id_ed25519")


@way
def read_cloud_key() -> None:
    look_into(f"{GROUND['home']}/.aws/credentials")


@way
def read_login_of_another_agent() -> None:
    look_into(f"{GROUND['home']}/.claude/.credentials.json")


@way
def read_another_home() -> None:
    look_into(GROUND["other_home"])


@way
def read_another_job() -> None:
    look_into(GROUND["other_job"])


@way
def read_ledger() -> None:
    look_into(GROUND["ledger"])


@way
def read_config() -> None:
    look_into(GROUND["config"])


@way
def read_through_a_link() -> None:
    os.symlink(f"{GROUND['home']}/.ssh/id_ed25519", f"{IN}/link")
    look_into(f"{IN}/link")


@way
def read_through_a_hardlink() -> None:
    os.link(f"{GROUND['home']}/.ssh/id_ed25519", f"{IN}/link")
    look_into(f"{IN}/link")


@way
def read_through_proc() -> None:
    first_that_works(
        *(lambda pid=pid: look_into(f"/proc/{pid}/root{GROUND['home']}/.ssh/id_ed25519") for pid in pids())
    )


@way
def read_environment_of_the_worker() -> None:
    first_that_works(*(lambda pid=pid: look_into(f"/proc/{pid}/environ") for pid in pids()))


@way
def read_memory_of_another() -> None:
    if memory_of(VICTIM, GROUND["address"]) != b"unharmed":
        raise FileNotFoundError("it holds something else")


@way
def read_environment_of_init() -> None:
    with open("/proc/1/environ", "rb") as file:
        if not file.read():
            raise FileNotFoundError("it is empty")


@way
def read_memory_of_init() -> None:
    memory_of(1)


@way
def read_shadow() -> None:
    with open("/etc/shadow", "rb") as file:
        file.read()


# --- reaching what was not given -------------------------------------------------------------------------------------


def greet() -> None:
    """Reach the service that was given; without that, the attacks would prove nothing."""
    with socket.create_connection(("127.0.0.1", GROUND["service"]), timeout=10) as talk:
        assert talk.recv(10) == b"hello"
    append(f"{IN}/greeted")


def speak(talk: socket.socket) -> None:
    with talk:
        talk.settimeout(5)
        talk.sendall(b"hostile\n")


@way
def talk_to_another_port() -> None:
    speak(socket.create_connection(("127.0.0.1", GROUND["tcp"]), timeout=5))


@way
def talk_to_another_address() -> None:
    """On the port of the service."""
    speak(socket.create_connection(("127.0.0.2", GROUND["service"]), timeout=5))


@way
def talk_over_ipv6() -> None:
    talk = socket.socket(socket.AF_INET6)
    talk.connect(("::ffff:127.0.0.1", GROUND["tcp"]))
    speak(talk)


@way
def talk_over_mptcp() -> None:
    talk = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    talk.connect(("127.0.0.1", GROUND["tcp"]))
    speak(talk)


@way
def talk_with_fast_open() -> None:
    talk = socket.socket()
    talk.sendto(b"hostile\n", 0x20000000, ("127.0.0.1", GROUND["tcp"]))
    speak(talk)


@way
def talk_with_fast_open_by_message() -> None:
    talk = socket.socket()
    talk.sendmsg([b"hostile\n"], [], 0x20000000, ("127.0.0.1", GROUND["tcp"]))
    speak(talk)


@way
def talk_with_fast_open_on_connect() -> None:
    """connect(2) then only notes the address; the first write goes there."""
    talk = socket.socket()
    talk.setsockopt(socket.IPPROTO_TCP, 30, 1)
    talk.connect(("127.0.0.1", GROUND["tcp"]))
    speak(talk)


@way
def talk_by_changing_the_address() -> None:
    """While it is being checked."""
    allowed, wanted = (struct.pack(">H", port) for port in (GROUND["service"], GROUND["tcp"]))
    address = bytearray(struct.pack("=H", socket.AF_INET) + allowed + socket.inet_aton("127.0.0.1") + bytes(8))
    over = threading.Event()

    def change() -> None:
        for port in itertools.cycle((wanted, allowed)):
            address[2:4] = port
            if over.is_set():
                return

    sys.setswitchinterval(1e-5)
    threading.Thread(target=change, daemon=True).start()
    pointer = (ctypes.c_char * len(address)).from_buffer(address)
    try:
        for _ in range(1000):
            with socket.socket() as talk:
                if libc.connect(talk.fileno(), pointer, len(address)) == 0 and talk.getpeername()[1] == GROUND["tcp"]:
                    return
    finally:
        over.set()
    raise ConnectionError("it always went to the service")


@way
def listen_without_bind() -> None:
    """Take a port on every address, where others find it."""
    with socket.socket() as server:
        server.listen()
        server.settimeout(3)
        with open(f"{IN}/port.new", "w") as file:
            file.write(str(server.getsockname()[1]))
        os.rename(f"{IN}/port.new", f"{IN}/port")
        server.accept()


# --- taking what others need -----------------------------------------------------------------------------------------


@way
def fork_bomb() -> None:
    """The growth is bounded: the machine of the tests must survive a sandbox that does not hold."""
    begun = []
    try:
        for _ in range(GROUND["many"]):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            begun.append(pid)
            if not GROUND["at_once"]:
                time.sleep(0.01)  # slowly enough for periodic checks to see it grow
    finally:
        for pid in begun:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@way
def memory() -> None:
    taken = [bytearray(b"\1") * (16 << 20) for _ in range(GROUND["memory"] >> 24)]
    assert all(len(piece) == 16 << 20 for piece in taken)


@way
def memory_of_many() -> None:
    """Each process stays below the memory limit; together they exceed it."""
    for _ in range(8):
        if os.fork() == 0:
            taken = bytearray(b"\1") * (GROUND["memory"] // 4)
            time.sleep(2)
            os._exit(0 if taken else 1)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)]
    if any(codes):
        raise MemoryError(f"they ended with {codes}")


@way
def disk() -> None:
    with open(f"{IN}/big", "wb") as file:
        for _ in range(GROUND["disk"] >> 20):
            file.write(b"\1" * (1 << 20))
            file.flush()
            time.sleep(GROUND["pause"])


@way
def outlive() -> None:
    """Fork twice, in a new session with an empty environment: the process outlives its parent."""
    beat = f"import time\nwhile True:\n  open({IN!r} + '/beat', 'a').write('x')\n  time.sleep(0.01)\n"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(3):
                os.close(fd)
                os.open(os.devnull, os.O_RDWR)
            os.execve(sys.executable, ["innocent", "-S", "-E", "-c", beat], {})
        os._exit(0)
    os.wait()
    while not os.path.exists(f"{IN}/beat"):
        time.sleep(0.005)


if __name__ == "__main__":
    try:
        if GROUND["greets"]:
            greet()
        WAYS[sys.argv[1]]()
    except (OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
