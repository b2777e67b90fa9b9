"""Asynchronous writes, which run while their caller continues."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.host import async_write, fs
from farro.host.async_write import AsyncWriter

BLOCKS = 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(bytes(BLOCKS * fs.BLOCK))
    return found


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    found = os.open(path, os.O_RDWR)
    assert fs.bypass_cache(found, True), "a filesystem on which nothing passes the page cache"
    yield found
    os.close(found)


@pytest.fixture
def writer() -> Iterator[AsyncWriter]:
    found = async_write.async_writer()
    assert found is not None, "no asynchronous writes here: a journal's records are written one by one"
    yield found
    found.close()
    found.close()  # closing twice is no error


def block(letter: bytes, number: int = 1) -> bytes:
    return letter * fs.BLOCK * number


def test_a_begun_write_is_in_the_file_when_it_has_ended(writer: AsyncWriter, fd: int, path: Path) -> None:
    for number in range(BLOCKS):
        data = block(bytes([65 + number]))
        fs.begin_write(writer, fd, str(path), data, number * fs.BLOCK)
        fs.write_through(fd, str(path), data, number * fs.BLOCK, writer)
    assert path.read_bytes() == b"".join(block(bytes([65 + number])) for number in range(BLOCKS))


def test_an_unawaited_write_ends_before_the_next_begins(writer: AsyncWriter, fd: int, path: Path) -> None:
    for _ in range(50):
        fs.begin_write(writer, fd, str(path), block(b"a", BLOCKS), 0)  # and its end is not awaited
        fs.begin_write(writer, fd, str(path), block(b"b"), 0)
        fs.write_through(fd, str(path), block(b"b"), 0, writer)
        assert path.read_bytes() == block(b"b") + block(b"a", BLOCKS - 1)
    fs.begin_write(writer, fd, str(path), block(b"c", BLOCKS), 0)
    writer.finish()
    fs.write_through(fd, str(path), block(b"d"), 0)
    assert path.read_bytes() == block(b"d") + block(b"c", BLOCKS - 1)


def test_closing_the_writer_waits_for_running_writes(fd: int, path: Path) -> None:
    writer = async_write.async_writer()
    assert writer is not None
    fs.begin_write(writer, fd, str(path), block(b"a", BLOCKS), 0)
    writer.close()
    assert path.read_bytes() == block(b"a", BLOCKS)


def test_a_write_that_cannot_begin_raises_at_once(writer: AsyncWriter, path: Path) -> None:
    reader = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        fs.begin_write(writer, reader, str(path), block(b"a"), 0)
    os.close(reader)
    assert path.read_bytes() == bytes(BLOCKS * fs.BLOCK)


def test_the_writer_accepts_only_whole_blocks_up_to_its_limit(writer: AsyncWriter) -> None:
    assert writer.accepts(block(b"a", BLOCKS))
    assert not writer.accepts(b"a")
    assert not writer.accepts(block(b"a", BLOCKS + 1))


def test_an_unknown_architecture_has_no_async_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_write, "_NUMBERS", {"pdp11": (1, 2, 3, 4)})
    assert async_write.async_writer() is None
