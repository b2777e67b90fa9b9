"""Stray processes without a marker end with the last plan; processes of other plans are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

pytestmark = pytest.mark.linux

# Run in a child process that adopts orphans like a worker. The other plan begins while the stray is being ended.
WORKER = """
import sys, threading, time
from pathlib import Path
from execution.bench import Bench, shell
from farro.host import process_tree

def benched(name):
    folder = Path(sys.argv[1], name)
    folder.mkdir()
    return Bench(folder)

def run_other():
    results.append(other.run(shell(1, SERVER), shell(2, USER)))

def kill(pid):
    if not others:
        others.append(threading.Thread(target=run_other))
        others[0].start()
        while not (other.work / "uses").exists():
            time.sleep(0.01)
    kill_child(pid)

STRAY = "(setsid env -i sh -c 'touch left; exec sleep 99' > /dev/null 2>&1 &); while [ ! -e left ]; do sleep 0.02; done"
SERVER = "(setsid sh -c 'echo $$ > pid; touch serves; exec sleep 600' &); while [ ! -e serves ]; do sleep 0.02; done"
USER = "touch uses; while [ ! -e go ]; do sleep 0.02; done; kill -0 $(cat pid)"

process_tree.adopt_orphans()
one, other, others, results = benched("one"), benched("other"), [], []
kill_child, process_tree._kill_child = process_tree._kill_child, kill
assert one.run(shell(1, STRAY)).success
(other.work / "go").touch()
others[0].join()
print(results[0].success, process_tree.reap_adopted())
"""


def test_ending_strays_spares_the_processes_of_a_plan_that_just_began(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "tests")}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path)], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.stderr) == ("True []\n", "")
