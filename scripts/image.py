"""Write a small root file system for containers to a tar file: busybox, and the Python that runs this.

An image made of it needs no registry, and its /usr/bin/python3 has the same version as the tests.
"""

from __future__ import annotations

import argparse
import io
import os
import pwd
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator

LEFT_OUT = {"test", "tests", "idlelib", "turtledemo", "tkinter", "ensurepip", "site-packages", "dist-packages"}
USERS = f"root:x:0:0:root:{pwd.getpwuid(0).pw_dir}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
GROUPS = "root:x:0:\nnogroup:x:65534:\n"
HOSTS = "127.0.0.1\tlocalhost\n"


class Image:
    """A tar file in which every entry belongs to root and every folder may be entered."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._names: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        name = path.strip("/")
        if name and name not in self._names:
            self.folder(os.path.dirname(name))
            entry = self._entry(name, mode)
            entry.type = tarfile.DIRTYPE
            self._tar.addfile(entry)

    def text(self, path: str, content: str) -> None:
        entry = self._entry(path, 0o644)
        entry.size = len(content.encode())
        self._tar.addfile(entry, io.BytesIO(content.encode()))

    def link(self, path: str, target: str) -> None:
        entry = self._entry(path, 0o777)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def file(self, path: str, source: str) -> None:
        if path.strip("/") not in self._names:
            with open(source, "rb") as content:
                about = os.fstat(content.fileno())
                entry = self._entry(path, 0o755 if about.st_mode & 0o100 else 0o644)
                entry.size = about.st_size
                self._tar.addfile(entry, content)

    def _entry(self, path: str, mode: int) -> tarfile.TarInfo:
        name = path.strip("/")
        if os.path.dirname(name):
            self.folder(os.path.dirname(name))
        self._names.add(name)
        entry = tarfile.TarInfo(name)
        entry.mode = mode
        return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--busybox", required=True, help="a busybox that is linked statically")
    parser.add_argument("path", help="the tar file to write")
    options = parser.parse_args()
    with tarfile.open(options.path, "w") as tar:
        image = Image(tar)
        for path in ("dev", "etc", "proc", "sys", "run", "usr/bin", pwd.getpwuid(0).pw_dir):
            image.folder(path)
        image.folder("tmp", 0o1777)
        image.text("etc/passwd", USERS)
        image.text("etc/group", GROUPS)
        image.text("etc/hosts", HOSTS)
        add_busybox(image, options.busybox)
        add_python(image)


def add_busybox(image: Image, busybox: str) -> None:
    image.file("bin/busybox", busybox)
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name != "busybox":
            image.link(f"bin/{name}", "busybox")


def add_python(image: Image) -> None:
    """Add the interpreter and its library where they are on this machine, so that nothing has to be adapted."""
    program = os.path.realpath(sys.executable)
    image.file(program, program)
    for name in ("python3", "python", os.path.basename(program)):
        if f"/usr/bin/{name}" != program:
            image.link(f"usr/bin/{name}", program)
    linked = [program]
    library = sysconfig.get_path("stdlib")
    for folder, folders, files in os.walk(library):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("config-"))
        for name in sorted(files):
            path = os.path.join(folder, name)
            image.file(path, path)
            if name.endswith(".so"):
                linked.append(path)
    for path in sorted(set(shared_libraries(linked))):
        image.file(path, path)


def shared_libraries(programs: list[str]) -> Iterator[str]:
    """Yield the libraries, and the loader, that these programs are linked with."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True)
    for found in re.finditer(r"^\s+(?:\S+ => )?(/\S+) \(0x", listed.stdout, re.MULTILINE):
        yield found[1]


if __name__ == "__main__":
    main()
