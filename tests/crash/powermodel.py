"""Model power cuts: record calls through the seam, and derive every disk state that a cut may leave.

The model's disk keeps less than any disk for which farro promises `power`, so that for each sync in the code there is
a state that needs it:

- A file has the bytes of its last fsync. Later writes are kept wholly, partly, not at all, or as garbage; writes in
  place are kept or lost sector by sector.
- A change of names (mkdir, create, symlink, link, unlink, rmdir, replace, move) is kept when one of the directories
  that it changes was synced afterwards. Otherwise each change is kept or lost independently: a later one may be kept
  and an earlier one lost. A rename is one change: both ends or none.
- A change needs the earlier ones that made it possible: the last change of each name that it touches; for rmdir, all
  that emptied the directory; and (`Order.BORN`) the creation of the directory in which it happens.

This is the disk that farro promises `power` for. ext4 and xfs log metadata in order, so that there a sync keeps
everything before it; those states are among the model's. btrfs logs single inodes: what it syncs it keeps with its
new ancestors, but a folder's move may be lost while a file that was replaced in it since is kept (blocklog found this).
On a PLACELESS disk even a folder's creation may be lost: there, what was acknowledged still holds.
"""

from __future__ import annotations

import enum
import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Name = tuple[int, str]  # the directory's inode and the name in it
EVERYTHING = -2  # the "inode" of a sync of the whole filesystem


class Order(enum.Enum):
    BORN = enum.auto()
    PLACELESS = enum.auto()


@dataclass(slots=True)
class Node:
    """An inode: a directory's entries, a file's bytes or a link's target."""

    entries: dict[str, int] | None = None
    data: bytes | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One call that changed names."""

    what: str
    clears: Name | None = None
    puts: Name | None = None
    inode: int = -1  # what `puts` names
    swaps: bool = False  # `clears` and `puts` are exchanged
    needs: frozenset[int]  # positions of the changes that it depends on
    born: frozenset[int]  # … and of those that created its directories

    @property
    def directories(self) -> set[int]:
        return {name[0] for name in (self.clears, self.puts) if name is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    inode: int
    data: bytes
    offset: int | None = None  # None: at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    inode: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An acknowledgement: from here on the store must keep it."""

    ack: Any


Entry = Change | Written | Synced | Told


class Recorder:
    """A seam that makes the calls and records their effects. Failed calls change nothing.

    Safe for threads: a call and its entry are one step. The folder's content at the beginning is taken as durable.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.nodes: dict[int, Node] = {0: Node(entries={})}  # as they are now
        self.born: dict[int, Node] = {}  # every inode, as it was made
        self.entries: list[Entry] = []
        self.trap: Callable[[str, tuple[Any, ...]], BaseException | None] | None = (
            None  # raised once instead of making a call
        )
        self._open: dict[int, int] = {}
        self._last: dict[Name, int] = {}
        self._made: dict[int, int] = {}
        self._within: dict[int, list[int]] = {}
        self._lock = threading.RLock()
        self._load(root, 0)
        self.base = {number: _copy(node) for number, node in self.nodes.items()}

    def _load(self, path: str, number: int) -> None:
        for entry in os.scandir(path):
            if entry.is_symlink():
                node = Node(target=os.readlink(entry.path))
            elif entry.is_dir():
                node = Node(entries={})
            else:
                with open(entry.path, "rb") as file:
                    node = Node(data=file.read())
            child = len(self.nodes)
            self.nodes[child] = node
            self._entries(number)[entry.name] = child
            if node.entries is not None:
                self._load(entry.path, child)

    # --- the seam ---

    def look(self, op: str, path: str) -> None:
        """Looking changes nothing."""

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self._lock:
            trouble = self.trap(op, args) if self.trap is not None else None
            if trouble is not None:
                self.trap = None
                raise trouble
            result = call(*args)
            getattr(self, f"_{op}")(result, *args)
            return result

    def tell(self, ack: Any) -> None:
        with self._lock:
            self.entries.append(Told(ack=ack))

    def _mkdir(self, _: None, path: str, mode: int) -> None:
        self._change(f"mkdir {self._short(path)}", puts=self._name(path), inode=self._born(Node(entries={})))

    def _create(self, fd: int, path: str, flags: int, mode: int) -> None:
        inode = self._born(Node(data=b""))
        self._open[fd] = inode
        self._change(f"create {self._short(path)}", puts=self._name(path), inode=inode)

    def _symlink(self, _: None, target: str, path: str) -> None:
        self._change(f"symlink {self._short(path)}", puts=self._name(path), inode=self._born(Node(target=target)))

    def _link(self, _: None, source: str, path: str) -> None:
        inode = self._at(self._name(source))  # the file, not its name: the old name may be lost and the new one kept
        self._change(f"link {self._short(path)}", puts=self._name(path), inode=inode)

    def _unlink(self, _: None, path: str) -> None:
        self._change(f"unlink {self._short(path)}", clears=self._name(path))

    def _rmdir(self, _: None, path: str) -> None:
        name = self._name(path)
        self._change(f"rmdir {self._short(path)}", clears=name, emptied=self._at(name))

    def _move(self, _: None, source: str, path: str) -> None:
        clears = self._name(source)
        what = f"move {self._short(source)} → {self._short(path)}"
        self._change(what, clears=clears, puts=self._name(path), inode=self._at(clears))

    _replace = _move

    def _exchange(self, _: None, source: str, path: str) -> None:
        what = f"exchange {self._short(source)} and {self._short(path)}"
        self._change(what, clears=self._name(source), puts=self._name(path), swaps=True)

    def _write_sync(self, _: None, fd: int, path: str, data: bytes, offset: int) -> None:
        """Record a write with its sync: a cut afterwards keeps it wholly, a cut during it keeps any part."""
        inode = self._at(self._name(path))
        node = self.nodes[inode]
        assert node.data is not None
        node.data = node.data[:offset] + data + node.data[offset + len(data) :]
        self.entries.append(Written(inode=inode, data=data, offset=offset))
        self.entries.append(Synced(inode=inode, what=self._short(path)))

    def _write_begun(self, _: None, fd: int, path: str, data: bytes, offset: int) -> None:
        """Record the start of a write; a write_sync of the same bytes ends it, until then any part may be on disk."""
        self.entries.append(Written(inode=self._at(self._name(path)), data=data, offset=offset))

    def _syncfs(self, _: None, fd: int, path: str) -> None:
        self.entries.append(Synced(inode=EVERYTHING, what="everything"))

    def _write(self, count: int, fd: int, view: Any) -> None:
        inode, data = self._open[fd], bytes(view[:count])
        node = self.nodes[inode]
        assert node.data is not None
        node.data += data
        self.entries.append(Written(inode=inode, data=data))

    def _utime(self, _: None, *args: Any) -> None:
        """Ignore times: no guarantee depends on them."""

    def _fsync(self, _: None, fd: int, path: str) -> None:
        self.entries.append(Synced(inode=self._at(self._name(path)), what=self._short(path)))

    # --- bookkeeping ---

    def _short(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _entries(self, inode: int) -> dict[str, int]:
        entries = self.nodes[inode].entries
        assert entries is not None
        return entries

    def _name(self, path: str) -> Name:
        inode = 0
        short = self._short(path)
        if short == ".":
            return (-1, "")
        *folders, name = short.split("/")
        for folder in folders:
            inode = self._entries(inode)[folder]
        return inode, name

    def _at(self, name: Name) -> int:
        return 0 if name[0] == -1 else self._entries(name[0])[name[1]]

    def _born(self, node: Node) -> int:
        number = len(self.nodes)
        self.nodes[number] = node
        self.born[number] = _copy(node)
        return number

    def _change(
        self,
        what: str,
        *,
        clears: Name | None = None,
        puts: Name | None = None,
        inode: int = -1,
        emptied: int | None = None,
        swaps: bool = False,
    ) -> None:
        touched = [name for name in (clears, puts) if name is not None]
        needs = {self._last[name] for name in touched if name in self._last}
        if emptied is not None:
            needs.update(self._within.get(emptied, ()))
        born = {self._made[name[0]] for name in touched if name[0] in self._made}
        position = len(self.entries)
        change = Change(
            what=what,
            clears=clears,
            puts=puts,
            inode=inode,
            needs=frozenset(needs),
            born=frozenset(born),
            swaps=swaps,
        )
        self.entries.append(change)
        _apply(self.nodes, change)
        for name in touched:
            self._last[name] = position
            self._within.setdefault(name[0], []).append(position)
        if inode != -1:
            self._made.setdefault(inode, position)


def _copy(node: Node) -> Node:
    return Node(entries=None if node.entries is None else dict(node.entries), data=node.data, target=node.target)


def _apply(nodes: Mapping[int, Node], change: Change) -> None:
    if change.swaps:
        assert change.clears is not None
        assert change.puts is not None
        one, other = nodes[change.clears[0]].entries, nodes[change.puts[0]].entries
        assert one is not None
        assert other is not None
        one[change.clears[1]], other[change.puts[1]] = other[change.puts[1]], one[change.clears[1]]
        return
    if change.clears is not None:
        entries = nodes[change.clears[0]].entries
        assert entries is not None
        del entries[change.clears[1]]
    if change.puts is not None:
        entries = nodes[change.puts[0]].entries
        assert entries is not None
        entries[change.puts[1]] = change.inode


# --- cuts and states ---------------------------------------------------------------------------------------------

EVERYTHING = "everything kept"


@dataclass(frozen=True, kw_only=True)
class Log:
    """A whole recorded run."""

    base: Mapping[int, Node]
    born: Mapping[int, Node]
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, recorder: Recorder) -> Log:
        return cls(base=recorder.base, born=recorder.born, entries=tuple(recorder.entries))

    def without_syncs(self, dropped: Callable[[Synced], bool]) -> Log:
        """Return the same run without some syncs: a sync only affects what a cut keeps."""
        kept = [Told(ack=None) if isinstance(entry, Synced) and dropped(entry) else entry for entry in self.entries]
        return Log(base=self.base, born=self.born, entries=tuple(kept))

    def told(self) -> list[int]:
        """Return the cuts right after each acknowledgement."""
        return [
            number + 1 for number, entry in enumerate(self.entries) if isinstance(entry, Told) and entry.ack is not None
        ]


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True, kw_only=True)
class State:
    """The disk after one power cut (names → inodes → content), and the acknowledgements before it."""

    cut: int
    names: Mapping[str, int]  # relative path → inode, parents first
    content: Mapping[int, bytes | Link | None]  # None: a directory
    acks: tuple[Any, ...]
    story: str

    def digest(self) -> bytes:
        whole = hashlib.sha256(str(len(self.acks)).encode())
        for path, inode in sorted(self.names.items()):
            whole.update(repr((path, self.content[inode])).encode())
        return whole.digest()

    def write_out(self, root: str) -> None:
        """Write the state into a fresh folder. Names of one inode become hard links again."""
        written: dict[int, str] = {}
        os.mkdir(root)
        for path, inode in self.names.items():
            content = self.content[inode]
            full = f"{root}/{path}"
            if content is None:
                os.mkdir(full)
            elif inode in written:
                os.link(written[inode], full, follow_symlinks=False)
            elif isinstance(content, Link):
                os.symlink(content.target, full)
            else:
                fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(fd, content)
                os.close(fd)
            written[inode] = full


Tear = Callable[[bytes, bytes], bytes]  # (synced bytes, written bytes) → bytes after the cut


def whole(synced: bytes, written: bytes) -> bytes:
    return written


def nothing(synced: bytes, written: bytes) -> bytes:
    return synced


def half(synced: bytes, written: bytes) -> bytes:
    if len(synced) == len(written):  # written in place: each sector has its old or its new bytes
        changed = _changed(synced, written)
        return _with(synced, {at: written[at : at + SECTOR] for at in changed[: (len(changed) + 1) // 2]})
    return written[: (len(synced) + len(written)) // 2]


def zeros(synced: bytes, written: bytes) -> bytes:
    if len(synced) == len(written):
        return _with(synced, {at: bytes(SECTOR) for at in _changed(synced, written)[1:]})
    return synced + bytes(len(written) - len(synced))


def garbage(synced: bytes, written: bytes) -> bytes:
    """Return an old block of another file: unparsable text of the right length. Of a write in place the first sector is
    kept: appending to a sector must not damage its earlier bytes (the journal's records assume this)."""
    if len(synced) == len(written):
        first, *others = _changed(synced, written) or [0]
        whole_first = {first: written[first : first + SECTOR]}
        return _with(synced, whole_first | dict.fromkeys(others, (b'\xff{"old": 1}' * SECTOR)[:SECTOR]))
    return synced + (b'\xff{"old": 1}' * (1 + len(written) // 10))[: len(written) - len(synced)]


SECTOR = 512


def _changed(synced: bytes, written: bytes) -> list[int]:
    """Return the offsets of the sectors in which the two differ."""
    return [at for at in range(0, len(written), SECTOR) if synced[at : at + SECTOR] != written[at : at + SECTOR]]


def _with(data: bytes, sectors: Mapping[int, bytes]) -> bytes:
    changed = bytearray(data)
    for at, sector in sectors.items():
        changed[at : at + SECTOR] = sector[: len(data) - at]
    return bytes(changed)


TEARS: tuple[Tear, ...] = (whole, nothing, half, zeros, garbage)
Choice = tuple[set[int], Mapping[int, Tear], str]  # the changes that are kept, how files are torn, and that in words


@dataclass(kw_only=True)
class Cut:
    """A power cut after the first `at` entries of a log."""

    log: Log
    at: int
    order: Order = Order.BORN
    changes: dict[int, Change] = field(init=False)  # by position
    durable: set[int] = field(init=False)
    data: dict[int, tuple[bytes, bytes]] = field(init=False)  # inode → (synced, written)
    acks: tuple[Any, ...] = field(init=False)
    last_sync: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        self.changes, self.data, self.durable = {}, {}, set()
        acks = []
        pending: dict[int, list[int]] = {}
        for position, entry in enumerate(self.log.entries[: self.at]):
            match entry:
                case Change():
                    self.changes[position] = entry
                    for directory in entry.directories:
                        pending.setdefault(directory, []).append(position)
                case Written():
                    synced, written = self.data.get(entry.inode, (b"", b""))
                    at = len(written) if entry.offset is None else entry.offset
                    self.data[entry.inode] = (synced, written[:at] + entry.data + written[at + len(entry.data) :])
                case Synced(inode=number) if number == EVERYTHING:
                    self.last_sync = position
                    self.durable.update(self.changes)
                    pending.clear()
                    self.data = {inode: (written, written) for inode, (_, written) in self.data.items()}
                case Synced():
                    self.last_sync = position
                    self.durable.update(pending.pop(entry.inode, ()))
                    if entry.inode in self.data:
                        written = self.data[entry.inode][1]
                        self.data[entry.inode] = (written, written)
                case Told(ack=ack):
                    if ack is not None:
                        acks.append(ack)
        self.durable = self.closed(self.durable)
        self.free = [position for position in self.changes if position not in self.durable]
        self.torn = [inode for inode, (synced, written) in self.data.items() if synced != written]
        self.acks = tuple(acks)

    def _needs(self, position: int) -> frozenset[int]:
        change = self.changes[position]
        return change.needs | change.born if self.order is Order.BORN else change.needs

    def closed(self, positions: Iterable[int]) -> set[int]:
        """Return those changes with all their dependencies."""
        answer: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position not in answer:
                answer.add(position)
                waiting += self._needs(position)
        return answer

    def without(self, dropped: Iterable[int]) -> set[int]:
        """Return all changes except those and their dependents."""
        gone = set(dropped)
        for position in self.changes:
            if position not in self.durable and self._needs(position) & gone:
                gone.add(position)
        return set(self.changes) - (gone - self.durable)

    def state(self, kept: set[int], tears: Mapping[int, Tear], story: str) -> State:
        nodes = {number: _copy(node) for number, node in self.log.base.items()}
        nodes |= {number: _copy(node) for number, node in self.log.born.items()}
        for position in sorted(kept):
            _apply(nodes, self.changes[position])
        content: dict[int, bytes | Link | None] = {}
        names: dict[str, int] = {}
        waiting = [("", 0)]
        while waiting:
            prefix, inode = waiting.pop()
            for name, child in (nodes[inode].entries or {}).items():
                node = nodes[child]
                names[prefix + name] = child
                if node.entries is not None:
                    content[child] = None
                    waiting.append((f"{prefix}{name}/", child))
                elif node.target is not None:
                    content[child] = Link(node.target)
                elif child in self.data:
                    content[child] = tears.get(child, whole)(*self.data[child])
                else:
                    content[child] = node.data or b""
        return State(cut=self.at, names=names, content=content, acks=self.acks, story=f"cut after {self.at}: {story}")

    def states(self, dice: random.Random, randoms: int) -> Iterator[State]:
        """Yield all changes kept; no unsynced change kept; then, in random order: each change lost alone, each kept
        alone, each file torn alone, the states of an ordered journal, and `randoms` random states."""
        choices = list(self._choices(dice, randoms))
        first, others = choices[:2], choices[2:]
        dice.shuffle(others)
        for choice in (*first, *others):
            yield self.state(*choice())

    def _choices(self, dice: random.Random, randoms: int) -> Iterator[Callable[[], Choice]]:
        everything = set(self.changes)

        def choose(kept: set[int], story: str, tear: Tear = whole, inode: int | None = None) -> Callable[[], Choice]:
            return lambda: (kept, dict.fromkeys(self.torn if inode is None else [inode], tear), story)

        def lost(position: int) -> Callable[[], Choice]:
            return lambda: (self.without([position]), {}, f"only lost: {self.changes[position].what}")

        def alone(position: int, tear: Tear) -> Callable[[], Choice]:
            story = f"of the unsynced only kept: {self.changes[position].what}; data {tear.__name__}"
            return lambda: (self.closed({*self.durable, position}), dict.fromkeys(self.torn, tear), story)

        yield choose(everything, EVERYTHING)
        yield choose(self.durable, "everything unsynced lost", nothing)
        for tear in TEARS[1:]:
            yield choose(everything, f"names kept, data {tear.__name__}", tear)
            for inode in self.torn:
                yield choose(everything, f"names kept, inode {inode} {tear.__name__}", tear, inode)
        for position in self.free:
            yield lost(position)
            yield alone(position, whole)
            yield alone(position, nothing)
        # An ordered journal has committed everything before the last sync, and a prefix of the rest.
        for end in [position for position in self.free if position > self.last_sync]:
            begun = {position for position in self.changes if position < end}
            for tear in (nothing, zeros, garbage):
                yield choose(begun, f"in order up to {end}, data {tear.__name__}", tear)
        for _ in range(randoms):
            yield lambda: self._any(dice)

    def _any(self, dice: random.Random) -> Choice:
        share = dice.choice((0.15, 0.5, 0.85))
        if dice.random() < 0.5:
            kept = self.closed({*self.durable, *(position for position in self.free if dice.random() < share)})
        else:
            kept = self.without([position for position in self.free if dice.random() > share])
        tears = {inode: dice.choice(TEARS) for inode in self.torn}
        names = ", ".join(self.changes[position].what for position in self.free if position in kept)
        torn = ", ".join(f"{inode} {tear.__name__}" for inode, tear in tears.items())
        return kept, tears, f"kept of the unsynced: {names or 'nothing'}; data: {torn or 'whole'}"


def states(
    log: Log, *, seed: int, randoms: int, order: Order = Order.BORN, cuts: Iterable[int] | None = None
) -> Iterator[State]:
    """Yield distinct states of every cut of a run: the first of each cut, then the second of each, and so on."""
    dice = random.Random(seed)
    positions = range(len(log.entries) + 1) if cuts is None else cuts
    running = [Cut(log=log, at=at, order=order).states(dice, randoms) for at in positions]
    seen: set[bytes] = set()
    while running:
        still = []
        for one in running:
            found = next(one, None)
            if found is None:
                continue
            still.append(one)
            digest = found.digest()
            if digest not in seen:
                seen.add(digest)
                yield found
        running = still
