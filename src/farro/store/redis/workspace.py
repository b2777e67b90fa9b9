"""The Workspace port on a local disk: folders of attempts and of whoever looks, under `<root>/jobs/.work`.

What is kept of an attempt lives in posting; what is stored where lives in the rest of the room.

    jobs/.work/<agent>/.lease                  flock'd while the process lives; the folder appears with it
    jobs/.work/<agent>/<job>/…                 shaped as the file store shapes a job (DESIGN §3.5)
    jobs/.work/<agent>/.spare/attempts/NNNN/   the empty folders of its last job, for the next one
    jobs/.work/look.<pid>.<random>/.lease      the same for copies that somebody looks at
    jobs/.work/look.<pid>.<random>/<job>.<version>/…

Nothing here is needed after a crash: a dead process's folders are debris, removed by `sweep` when its processes are
ended. So nothing here is synced, but what goes to the shared directory. A small job costs two files and two renames: a
folder is used again, because removing one costs ext4 up to some milliseconds, and removing a file that never reached
the disk next to nothing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

from farro.errors import Damaged, NoFolder, StorageTrouble
from farro.host import fs, leases, links
from farro.host.clock_port import Clock
from farro.host.trees import remove_tree
from farro.jobs import ids
from farro.jobs.outcomes import Report
from farro.store.redis.attempt_files import SNAPSHOT, TASKS, Posting, Shelf, result_files
from farro.store.workspace import JobFiles, PostedFiles

WORK = "jobs/.work"
LEASE = ".lease"
SPARE = ".spare"
CARRIED = "carried"
LOOKS = 32  # jobs that a process keeps a copy of to look at
LOOKED_BYTES = 16 << 20  # of a file of the shared directory that had to be copied to be looked at
# Two files of one name, a file where a folder must be, a name that no disk takes.
_NO_NAMES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ})
DEBRIS_S = 3600.0  # a folder that never became an agent's is removed after so long


class LocalWorkspace:
    """Calls are safe from many threads; each attempt belongs to one."""

    def __init__(
        self,
        root: str,
        *,
        name: str,
        clock: Clock,
        shared: str | None = None,
        inline_bytes: int = 256 << 10,
        reap: Callable[[str], None] = lambda agent_id: None,  # end the processes of a dead agent of this machine
    ) -> None:
        self._home = f"{root}/{WORK}"
        self._clock = clock
        self._shelf = None if shared is None else Shelf(f"{shared}/{name}")
        self._inline_bytes = inline_bytes
        self._reap = reap
        self._making = threading.Lock()  # guards what is taken out of _promised, and the making of it; before _lock
        # Jobs' folders that nobody asked for yet. Put there without the lock, in which another slot may be writing: so
        # it is one set for ever, and is walked as a copy. [test_slots_promise_while_others_leave]
        self._promised: set[str] = set()
        self._lock = threading.Lock()  # guards the four below
        self._spares: dict[str, str] = {}  # agent → the name of the one folder in its spare's attempts
        self._leases: dict[str, leases.Lease] = {}  # by the name of the folder in .work
        self._looks: OrderedDict[tuple[str, str], str] = OrderedDict()  # (job, version) → folder
        self._look_home: str | None = None

    # --- attempts ---

    def begin(self, agent_id: str, job_id: str, attempt: int, material: JobFiles) -> str:
        agent_home = self._agent_home(agent_id)
        folder = f"{agent_home}/{job_id}"
        home = f"{folder}/attempts/{attempt:04d}"
        with self._lock:
            spare = self._spares.pop(agent_id, None)
        make = fs.mkdir if spare is None else functools.partial(fs.move, f"{agent_home}/{SPARE}")
        try:
            make(folder)
        except FileExistsError:  # this agent had the job before, and it was taken from it
            remove_tree(folder)
            make(folder)
        if spare is None:
            fs.mkdir(f"{folder}/attempts")
            fs.mkdir(home)
        elif spare != f"{attempt:04d}":
            fs.move(f"{folder}/attempts/{spare}", home)
        _fill(folder, material, self._shelf, whole=True)
        return home

    def promise(
        self, agent_id: str, job_id: str, attempt: int, material: Callable[[], JobFiles]
    ) -> tuple[str, Callable[[], None]]:
        folder = f"{self._agent_home(agent_id)}/{job_id}"
        self._promised.add(folder)

        def make() -> None:
            if folder in self._promised:
                with self._making:
                    if folder in self._promised:  # it is not over, and no other thread was quicker
                        self._made(agent_id, job_id, attempt, material())
                        self._promised.discard(folder)

        return f"{folder}/attempts/{attempt:04d}", make

    def _made(self, agent_id: str, job_id: str, attempt: int, material: JobFiles) -> None:
        try:
            self.begin(agent_id, job_id, attempt, material)
        except StorageTrouble as error:
            raise NoFolder(str(error)) from error
        except OSError as error:
            raise NoFolder(
                f"{error.filename or self._home}: {error.strerror or error}: no folder for an attempt could be made; "
                "free space there, then try again"
            ) from error

    def post(self, folder: str, report: Report, *, good: bool) -> PostedFiles:
        made = folder.rsplit("/", 2)[0] not in self._promised
        if not made:
            return PostedFiles(files=result_files(report, report.result, good=good))
        return Posting(folder, inline_bytes=self._inline_bytes, shelf=self._shelf).posted(report, good=good)

    def end(self, agent_id: str, job_id: str) -> None:
        home, folder = f"{self._home}/{agent_id}", f"{self._home}/{agent_id}/{job_id}"
        with self._making:  # an attempt that could not be ended may be asking for it
            if folder in self._promised:
                self._promised.discard(folder)
                return
        with contextlib.suppress(OSError):  # whatever a step left there: it goes with the agent
            with self._lock:
                known = agent_id in self._leases and agent_id not in self._spares
            spare = _emptied(folder) if known else None
            if spare is None:
                remove_tree(folder)
                return
            fs.move(folder, f"{home}/{SPARE}")
            with self._lock:
                self._spares[agent_id] = spare

    def leave(self, agent_id: str) -> None:
        with self._making:
            for folder in [*self._promised]:
                if folder.rsplit("/", 2)[1] == agent_id:
                    self._promised.discard(folder)
        with self._lock:
            lease = self._leases.pop(agent_id, None)
            self._spares.pop(agent_id, None)
        if lease is not None:
            self._remove(agent_id, lease)

    def forget(self, job_id: str) -> None:
        if self._shelf is not None:
            with contextlib.suppress(OSError):  # not mounted, or not ours: a person sees it there
                remove_tree(self._shelf.path(ids.check_job_id(job_id)))

    def close(self) -> None:
        """What this process made goes."""
        with self._making:
            self._promised.clear()
        with self._lock:
            held, self._leases, self._look_home = self._leases, {}, None
            self._looks.clear()
            self._spares.clear()
        for name, lease in held.items():
            self._remove(name, lease)

    def sweep(self) -> list[str]:
        try:
            names = fs.listdir(self._home)
        except FileNotFoundError:
            return []
        gone = []
        for name in sorted(names):
            with contextlib.suppress(OSError):  # another watchdog of this machine is at it
                if self._sweep(name) and not name.startswith((fs.TEMPORARY, "look.")):
                    gone.append(name)
        return gone

    def _sweep(self, name: str) -> bool:
        folder = f"{self._home}/{name}"
        try:
            lease = leases.take(f"{folder}/{LEASE}")
        except FileNotFoundError:  # being made, or being removed
            age_s = self._clock.now().timestamp() - fs.lstat(folder).st_mtime
            if age_s > DEBRIS_S:
                remove_tree(folder)
            return False
        if lease is None:
            return False
        if not name.startswith((fs.TEMPORARY, "look.")):
            self._reap(name)
        self._remove(name, lease)
        return True

    # --- looking ---

    def look(self, job_id: str, version: str, material: JobFiles) -> str:
        live = self._live(job_id, material)
        if live is not None:
            return live
        key = job_id, version
        with self._lock:
            if key in self._looks:
                self._looks.move_to_end(key)
                return self._looks[key]
        home = self._looking()
        folder = f"{home}/{ids.check_job_id(job_id)}.{sha256(version.encode()).hexdigest()[:16]}"
        name = fs.temporary(home)
        fs.mkdir(name)
        fs.mkdir(f"{name}/attempts")
        _fill(name, material, self._shelf, whole=False)
        with self._lock:
            try:
                fs.move(name, folder)
            except FileExistsError:  # another thread looked at the same moment
                remove_tree(name)
            self._looks[key] = folder
            old = [self._looks.popitem(last=False)[1] for _ in range(len(self._looks) - LOOKS)]
        for path in old:
            remove_tree(path)
        return folder

    def _live(self, job_id: str, material: JobFiles) -> str | None:
        """The attempt's own folder, where that is on this machine: what it says so far is seen."""
        if b'"in_progress"' not in material.lifecycle:
            return None
        try:
            agent = json.loads(material.lifecycle).get("agent")
        except ValueError:
            return None
        if not isinstance(agent, str) or "/" in agent or agent.startswith("."):
            return None
        folder = f"{self._home}/{agent}/{job_id}"
        return folder if fs.exists(f"{folder}/prompt.json") else None

    def _looking(self) -> str:
        with self._lock:
            if self._look_home is None:
                name = f"look.{os.getpid()}.{os.urandom(4).hex()}"
                self._leases[name] = self._leased(name)
                self._look_home = f"{self._home}/{name}"
            return self._look_home

    # --- folders with a lease ---

    def _agent_home(self, agent_id: str) -> str:
        with self._lock:
            if agent_id not in self._leases:
                self._leases[agent_id] = self._leased(agent_id)
        return f"{self._home}/{agent_id}"

    def _leased(self, name: str) -> leases.Lease:
        """Its folder, which is leased when others can see it."""
        new = fs.temporary(self._home)
        try:
            try:
                fs.mkdir(new)
            except FileNotFoundError:
                for folder in (os.path.dirname(self._home), self._home):
                    with contextlib.suppress(FileExistsError):
                        fs.mkdir(folder)
                fs.mkdir(new)
            lease = leases.create(f"{new}/{LEASE}", f"pid {os.getpid()}\n".encode())
        except OSError as error:
            raise StorageTrouble(
                f"{self._home}: {error.strerror}; farro needs to write there, for the files of the jobs that it works "
                "on and shows. Give this user the right, free space, or name another root with --root"
            ) from error
        try:
            fs.move(new, f"{self._home}/{name}")
        except BaseException:
            lease.drop()
            raise
        return lease

    def _remove(self, name: str, lease: leases.Lease) -> None:
        """Under its lease: nobody else is at it."""
        try:
            remove_tree(f"{self._home}/{name}")
        except OSError:  # the next sweep tries again
            pass
        finally:
            lease.drop()


def _emptied(folder: str) -> str | None:
    """Leave of a job's folder nothing but attempts/NNNN, and tell that name. None: it was more than that, or something
    else; some of it may be gone."""
    attempts = fs.listdir(f"{folder}/attempts")
    if len(attempts) != 1:
        return None
    try:
        for above in (folder, f"{folder}/attempts/{attempts[0]}"):
            for name in fs.listdir(above):
                if above != folder or name != "attempts":
                    fs.unlink(f"{above}/{name}")
    except OSError:  # a folder: of the steps, .snapshot, or something that a step made
        return None
    return attempts[0]


def _fill(folder: str, material: JobFiles, shelf: Shelf | None, *, whole: bool) -> None:
    """A job's folder, of what is known of it. Damaged: that can be no folder, on no machine."""
    try:
        _filled(folder, material, shelf, whole=whole)
    except OSError as error:
        if error.errno not in _NO_NAMES:
            raise
        raise Damaged(f"what was posted makes no folder: {error}") from error


def _filled(folder: str, material: JobFiles, shelf: Shelf | None, *, whole: bool) -> None:
    fs.create(f"{folder}/job.json", material.lifecycle)
    fs.create(f"{folder}/prompt.json", material.prompt)
    if material.narrative is not None:
        fs.create(f"{folder}/prompt.md", material.narrative.encode("utf-8", "replace"))
    if material.payload:
        _write(folder, {f"payload/{name}": data for name, data in material.payload.items()})
    _write(folder, {f"{CARRIED}/{name}": data for name, data in material.carried.items()})
    mirrors: dict[str, bytes] = {}
    for number in sorted(material.attempts):
        posted = material.attempts[number]
        home = f"{folder}/attempts/{number:04d}"
        fs.mkdir(home)
        own = {name: data for name, data in posted.files.items() if not _is_task(name)}
        _write(home, own)
        _fetch(home, posted, shelf, whole=whole)
        _write(folder, {name: data for name, data in posted.files.items() if _is_task(name)}, again=True)
        if "result.md" in posted.files:  # the latest attempt wins; an older result stays when a later one failed
            mirrors = {"result.md": posted.files["result.md"]}
        elif "error.md" in posted.files:
            mirrors["error.md"] = posted.files["error.md"]
    _write(folder, mirrors)


def _is_task(name: str) -> bool:
    return name.startswith(f"{SNAPSHOT}/") and name[len(SNAPSHOT) + 1 :] in TASKS


def _write(home: str, files: Mapping[str, bytes], *, again: bool = False) -> None:
    for folder in _above(files):
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{home}/{folder}")
    for name, data in files.items():
        try:
            fs.create(f"{home}/{name}", data)
        except FileExistsError:
            if not again:
                raise


def _above(names: Iterable[str]) -> list[str]:
    """The folders that these names need, the upper ones first. What came over the network names no path outside."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise Damaged(f"a file that was posted is called {name!r}, which is no name for one")
        for end in range(1, len(parts)):
            found["/".join(parts[:end])] = None
    return list(found)


def _fetch(home: str, posted: PostedFiles, shelf: Shelf | None, *, whole: bool) -> None:
    """Of the shared directory, where this machine has it; who only looks at a large file sees its beginning."""
    if not posted.elsewhere or shelf is None:
        return
    _above(posted.elsewhere.values())
    for folder in _above(posted.elsewhere):
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{home}/{folder}")
    for name, place in posted.elsewhere.items():
        source = shelf.path(place)
        with contextlib.suppress(OSError):  # not there, or not mounted: as if it had not been kept
            if whole or fs.lstat(source).st_dev == fs.lstat(home).st_dev:
                links.place(source, f"{home}/{name}")
            else:
                fs.create(f"{home}/{name}", fs.read_bytes(source, LOOKED_BYTES))
