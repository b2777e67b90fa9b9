"""Implement the Workspace port on a local disk, under `<root>/jobs/.work`.

    jobs/.work/<agent>/.lease                  flock'd while the process lives; the folder appears with it
    jobs/.work/<agent>/<job>/…                 laid out like a job of the file store (DESIGN §3.5)
    jobs/.work/<agent>/.spare/attempts/NNNN/   the empty folders of its last job, for the next one
    jobs/.work/look.<pid>.<random>/.lease      the same for copies that are only read
    jobs/.work/look.<pid>.<random>/<job>.<version>/…

Nothing here is needed after a crash: `sweep` ends the processes of a dead process and removes its folders. So only
files in the shared directory are synced. A small job costs two files and two renames: a folder is reused, because
removing one costs ext4 up to some milliseconds, while removing a file that never reached the disk costs next to
nothing.
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
from farro.host.clock import Clock
from farro.host.trees import remove_tree
from farro.jobs import ids, moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report
from farro.jobs.states import Reason
from farro.store.redis.attempt_files import SNAPSHOT, TASKS, AttemptFiles, SharedFiles, result_files
from farro.store.workspace import JobFiles, PostedFiles

WORK = "jobs/.work"
LEASE = ".lease"
SPARE = ".spare"
CARRIED = "carried"
LOOKS = 32  # jobs whose copy a process keeps for reading
LOOKED_BYTES = 16 << 20  # of a file in the shared directory that must be copied for reading
# Two files with one name, a file where a folder must be, or a name that the disk rejects.
_NO_NAMES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ})
DEBRIS_S = 3600.0  # a folder without a lease is removed after this time


class LocalWorkspace:
    """Safe for many threads; each attempt belongs to one thread."""

    def __init__(
        self,
        root: str,
        *,
        name: str,
        clock: Clock,
        shared: str | None = None,
        inline_bytes: int = 256 << 10,
        reap: Callable[[str], None] = lambda agent_id: None,  # ends the processes of a dead agent on this machine
    ) -> None:
        self._home = f"{root}/{WORK}"
        self._clock = clock
        self._shared_files = None if shared is None else SharedFiles(f"{shared}/{name}")
        self._inline_bytes = inline_bytes
        self._reap = reap
        # guards removal from _promised and the creation of those folders; taken before _lock
        self._making = threading.Lock()
        # Job folders that were not needed yet. Adding takes no lock, because a slot may hold it while it writes. So the
        # set is never replaced, and is iterated as a copy. [test_a_slot_keeps_its_promised_folder_while_others_leave]
        self._promised: set[str] = set()
        self._lock = threading.Lock()  # guards the four fields below
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
        except FileExistsError:  # this agent had the job before, and lost it
            remove_tree(folder)
            make(folder)
        if spare is None:
            fs.mkdir(f"{folder}/attempts")
            fs.mkdir(home)
        elif spare != f"{attempt:04d}":
            fs.move(f"{folder}/attempts/{spare}", home)
        _fill(folder, material, self._shared_files, whole=True)
        return home

    def promise(
        self, agent_id: str, job_id: str, attempt: int, material: Callable[[], JobFiles]
    ) -> tuple[str, Callable[[], None]]:
        folder = f"{self._agent_home(agent_id)}/{job_id}"
        self._promised.add(folder)

        def make() -> None:
            if folder in self._promised:
                with self._making:
                    if folder in self._promised:  # still wanted, and no other thread was quicker
                        self._make_folder(agent_id, job_id, attempt, material())
                        self._promised.discard(folder)

        return f"{folder}/attempts/{attempt:04d}", make

    def _make_folder(self, agent_id: str, job_id: str, attempt: int, material: JobFiles) -> None:
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
        return AttemptFiles(folder, inline_bytes=self._inline_bytes, shared_files=self._shared_files).collect(
            report, good=good
        )

    def end(self, agent_id: str, job_id: str) -> None:
        home, folder = f"{self._home}/{agent_id}", f"{self._home}/{agent_id}/{job_id}"
        with self._making:  # a thread of an unfinished attempt may be creating the folder
            if folder in self._promised:
                self._promised.discard(folder)
                return
        with contextlib.suppress(OSError):  # files that a step left are removed with the agent
            with self._lock:
                known = agent_id in self._leases and agent_id not in self._spares
            spare = _empty(folder) if known else None
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
        if self._shared_files is not None:
            with contextlib.suppress(OSError):  # not mounted or not ours: a person can see it there
                remove_tree(self._shared_files.path(ids.check_job_id(job_id)))

    def close(self) -> None:
        """Remove the folders that this process made."""
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
            with contextlib.suppress(OSError):  # another watchdog of this machine is removing it
                if self._sweep(name) and not name.startswith((fs.TEMPORARY, "look.")):
                    gone.append(name)
        return gone

    def _sweep(self, name: str) -> bool:
        folder = f"{self._home}/{name}"
        try:
            lease = leases.take(f"{folder}/{LEASE}")
        except FileNotFoundError:  # being created or removed
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

    # --- reading ---

    def look(self, job_id: str, version: str, material: JobFiles) -> str:
        live = self._live(job_id, material)
        if live is not None:
            return live
        key = job_id, version
        with self._lock:
            if key in self._looks:
                self._looks.move_to_end(key)
                return self._looks[key]
        home = self._look_folder()
        folder = f"{home}/{ids.check_job_id(job_id)}.{sha256(version.encode()).hexdigest()[:16]}"
        name = fs.temporary(home)
        fs.mkdir(name)
        fs.mkdir(f"{name}/attempts")
        _fill(name, material, self._shared_files, whole=False)
        with self._lock:
            try:
                fs.move(name, folder)
            except FileExistsError:  # another thread made the same copy
                remove_tree(name)
            self._looks[key] = folder
            old = [self._looks.popitem(last=False)[1] for _ in range(len(self._looks) - LOOKS)]
        for path in old:
            remove_tree(path)
        return folder

    def _live(self, job_id: str, material: JobFiles) -> str | None:
        """Return the attempt's own folder if it is on this machine, so that its output so far is visible."""
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

    def _look_folder(self) -> str:
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
        """Create a folder that is already leased when others can see it."""
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
        """Remove a folder; the caller holds its lease, so no other process does."""
        try:
            remove_tree(f"{self._home}/{name}")
        except OSError:  # the next sweep tries again
            pass
        finally:
            lease.drop()


def _empty(folder: str) -> str | None:
    """Empty a job's folder down to attempts/NNNN, and return that name. None: it holds other folders; some files may be
    gone."""
    attempts = fs.listdir(f"{folder}/attempts")
    if len(attempts) != 1:
        return None
    try:
        for above in (folder, f"{folder}/attempts/{attempts[0]}"):
            for name in fs.listdir(above):
                if above != folder or name != "attempts":
                    fs.unlink(f"{above}/{name}")
    except OSError:  # a folder: `steps`, .snapshot, or one that a step made
        return None
    return attempts[0]


def _fill(folder: str, material: JobFiles, shared_files: SharedFiles | None, *, whole: bool) -> None:
    """Write a job's folder. Damaged: the stored names cannot form a folder on any machine."""
    try:
        _write_all(folder, material, shared_files, whole=whole)
    except OSError as error:
        if error.errno not in _NO_NAMES:
            raise
        raise Damaged(f"the job's stored files cannot be written as a folder: {error}") from error


def _write_all(folder: str, material: JobFiles, shared_files: SharedFiles | None, *, whole: bool) -> None:
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
        _fetch(home, posted, shared_files, whole=whole)
        _write(folder, {name: data for name, data in posted.files.items() if _is_task(name)}, again=True)
        if "result.md" in posted.files:  # the latest attempt wins; an older result stays if a later attempt failed
            mirrors = {"result.md": posted.files["result.md"]}
        elif "error.md" in posted.files:
            mirrors["error.md"] = posted.files["error.md"]
    if Reason.FORCE_COMPLETED.encode() in material.lifecycle:  # before it is parsed: seldom there
        text = moves.completion_text(Lifecycle.from_json(material.lifecycle))
        mirrors = mirrors if text is None else {"result.md": text.encode("utf-8", "replace")}
    _write(folder, mirrors)


def _is_task(name: str) -> bool:
    return name.startswith(f"{SNAPSHOT}/") and name[len(SNAPSHOT) + 1 :] in TASKS


def _write(home: str, files: Mapping[str, bytes], *, again: bool = False) -> None:
    for folder in _parents(files):
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{home}/{folder}")
    for name, data in files.items():
        try:
            fs.create(f"{home}/{name}", data)
        except FileExistsError:
            if not again:
                raise


def _parents(names: Iterable[str]) -> list[str]:
    """Return the folders that these names need, parents first. Names come from the network: none may lead outside."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise Damaged(f"a file that was posted is called {name!r}, which is not a name for one")
        for end in range(1, len(parts)):
            found["/".join(parts[:end])] = None
    return list(found)


def _fetch(home: str, posted: PostedFiles, shared_files: SharedFiles | None, *, whole: bool) -> None:
    """Fetch files from the shared directory, if this machine has it. Large files that are only read are cut."""
    if not posted.elsewhere or shared_files is None:
        return
    _parents(posted.elsewhere.values())
    for folder in _parents(posted.elsewhere):
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{home}/{folder}")
    for name, place in posted.elsewhere.items():
        source = shared_files.path(place)
        with contextlib.suppress(OSError):  # missing or not mounted: treat it as not kept
            if whole or fs.lstat(source).st_dev == fs.lstat(home).st_dev:
                links.place(source, f"{home}/{name}")
            else:
                fs.create(f"{home}/{name}", fs.read_bytes(source, LOOKED_BYTES))
