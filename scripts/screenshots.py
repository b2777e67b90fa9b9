"""Make docs/images: screenshots of every page of the dashboard, light and dark, with a root that is made for them.

    scripts/packages.sh chromium fonts-inter fonts-jetbrains-mono
    .venv/bin/python scripts/screenshots.py [NAME…]

The past hour is written as files (ended jobs and their lines of the audit log). Everything current is real: workers, a
manager, agents that answer from a file, and a swarm.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import farro
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
SIZE = {"width": 1360, "height": 850}
MOST_BYTES = 150_000
MAGIC = b"\x89PNG\r\n\x1a\n"
# Half of the palette are the most frequent colours, the other half those furthest from the palette so far.
QUANTISE = """async (data) => {
  const image = new Image(); image.src = `data:image/png;base64,${data}`; await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height); const paint = canvas.getContext("2d");
  paint.drawImage(image, 0, 0);
  const bytes = paint.getImageData(0, 0, image.width, image.height).data;
  const seen = new Map();
  for (let at = 0; at < bytes.length; at += 4) {
    const colour = (bytes[at] << 16) | (bytes[at + 1] << 8) | bytes[at + 2]; seen.set(colour, (seen.get(colour) || 0) + 1);
  }
  const far = (a, b) => ((a >> 16) - (b >> 16)) ** 2 + (((a >> 8) & 255) - ((b >> 8) & 255)) ** 2 + ((a & 255) - (b & 255)) ** 2;
  const all = [...seen.entries()].sort((a, b) => b[1] - a[1]);
  const chosen = all.slice(0, 128).map(([colour]) => colour);
  const rest = all.slice(128).map(([colour, count]) => ({colour, count, off: Math.min(...chosen.map((one) => far(one, colour)))}));
  while (chosen.length < 256 && rest.length) {
    const next = rest.reduce((best, one) => one.off * Math.sqrt(one.count) > best.off * Math.sqrt(best.count) ? one : best);
    chosen.push(next.colour); for (const one of rest) one.off = Math.min(one.off, far(one.colour, next.colour));
  }
  const place = new Map(all.map(([colour]) => [colour, chosen.reduce((best, one, i) => far(one, colour) < far(chosen[best], colour) ? i : best, 0)]));
  let cells = "";
  for (let at = 0; at < bytes.length; at += 4) cells += String.fromCharCode(place.get((bytes[at] << 16) | (bytes[at + 1] << 8) | bytes[at + 2]));
  return {width: image.width, height: image.height, cells: btoa(cells), colours: chosen.flatMap((one) => [one >> 16, (one >> 8) & 255, one & 255])};
}"""  # noqa: E501
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
PAGES = {
    "overview": "overview?window=3600",
    "board": "board",
    "job": "job/release-2-4",
    "tasks": "task/checkout",
    "inbox": "inbox",
    "swarms": "swarms",
    "history": "history",
}
WORK = (
    *("make test", "pytest tests/api -q", "ruff check .", "npm run build", "Resize 240 thumbnails", "Nightly backup"),
    *("Import supplier prices", "Render invoices", "rsync build/ mirror", "Rebuild the search index", "docker build ."),
)
TASKS: dict[str, dict[str, Any]] = {
    "checkout": {
        "title": "Fix the flaky checkout test",
        "description": "`test_total` fails about one run in ten, only on CI. Find out why before you change anything.",
        "workflow": [
            {"role": "Architect", "rubric": "Find the cause, and plan the change."},
            {"role": "SeniorEngineer", "rubric": "Make the change, with a test."},
            {"role": "CodeReviewer", "rubric": "Run the tests, and judge."},
            {"role": "human", "rubric": "Shall it be released with 2.4?"},
            {"role": "DocWriter", "rubric": "Tell users in CHANGELOG.md."},
        ],
    },
    "rate-limits": {
        "title": "Rate limits for the public API",
        "description": "Sixty requests a minute for each key; an answer 429 says when to come back.",
        "workflow": [
            {"role": "Architect", "rubric": "Choose where the counters live."},
            {"role": "SeniorEngineer", "rubric": "Build it behind a flag."},
            {"role": "human", "rubric": "Is sixty a minute right?"},
        ],
    },
    "guide": {
        "title": "A migration guide for 2.0",
        "description": "What changes for users, and how to get there in ten minutes.",
        "workflow": [
            {"role": "DocWriter", "rubric": "Write it."},
            {"role": "CodeReviewer", "rubric": "Try every step."},
        ],
    },
}
PATCH = """diff --git a/shop/cart.py b/shop/cart.py
--- a/shop/cart.py
+++ b/shop/cart.py
@@ -11,5 +11,6 @@ class Cart:
     def total(self) -> Decimal:
-        lines = {line.key: line for line in self.lines}
-        return sum(line.price for line in lines.values())
+        # Two lines may share a key: a set of keys lost one of them, depending on the order.
+        lines = sorted(self.lines, key=lambda line: line.added_at)
+        return sum((line.price for line in lines), Decimal(0))
     def empty(self) -> bool:
         return not self.lines
diff --git a/tests/test_cart.py b/tests/test_cart.py
--- a/tests/test_cart.py
+++ b/tests/test_cart.py
@@ -30,3 +30,8 @@ def test_total() -> None:
     assert cart.total() == Decimal("41.50")
+
+
+def test_two_lines_of_one_article_count_twice() -> None:
+    cart = Cart([line("tea", "3.20"), line("tea", "3.20")])
+    assert cart.total() == Decimal("6.40")
"""
ANALYSIS = (
    "`Cart.total` keeps lines in a dictionary by their key. Two lines of one article share a key, and which of them "
    "stays depends on the order in which the fixtures were made.\n\n- `shop/cart.py`: sum the lines themselves\n"
    "- `tests/test_cart.py`: a cart with the same article twice"
)
SUMMARY = (
    "The total is the sum of **all lines** now, in the order in which they were added.\n\n"
    "- no line is lost when an article is there twice\n- the test that was flaky ran 500 times without a failure"
)
ANSWERS: list[dict[str, Any]] = [
    {"role": "Architect", "answer": {"analysis": ANALYSIS}, "cost_usd": 0.0312, "delay_s": 0.4},
    {
        "role": "SeniorEngineer",
        "answer": {"summary": SUMMARY, "patch": PATCH, "tests": "14 passed"},
        "cost_usd": 0.1184,
    },
    {"role": "CodeReviewer", "answer": {"verdict": "approve", "summary": "Clear, and tested."}, "cost_usd": 0.0421},
    {"role": "DocWriter", "answer": {"summary": "Said so in CHANGELOG.md."}, "cost_usd": 0.0108},
]
UNIT = 'for n in 1 2 3 4 5 6; do echo "tests/unit/test_$n.py ........ [ ${n}6%]"; done; echo "212 passed in 3.81s"'
BUILD = 'echo "Step 1/6 : FROM debian:12"; echo "warning: cache was cold" >&2; echo "Successfully built 9f2e41c0aa17"'
E2E = 'for n in 01 02 03 04 05 06 07 08 09 10; do echo "ok $n - a customer pays by card"; sleep 0.2; done; sleep 900'


def step(name: str, script: str, *needs: str) -> dict[str, Any]:
    return {"id": name, "command": "sh", "args": ["-c", script], "needs": list(needs)}


RELEASE = {
    "name": "Release 2.4",
    "parallel": 3,
    "steps": [
        step("checkout", 'echo "HEAD is now at 4c1f9e2 Release 2.4"'),
        step("lint", 'echo "All checks passed!"', "checkout"),
        step("unit", UNIT, "checkout"),
        step("build", BUILD, "checkout"),
        step("e2e", E2E, "build", "unit"),
        step("sign", "cosign sign shop:2.4", "e2e", "lint"),
        step("publish", "crane push shop:2.4", "sign"),
    ],
}


def past(root: Path, count: int, chance: random.Random) -> None:
    """Write the last hour as the store would have left it."""
    now = datetime.now(UTC)
    lines: list[tuple[datetime, dict[str, Any]]] = []
    for number in range(count):
        share = number / count
        created = now - timedelta(seconds=3540 * (1 - share) - chance.uniform(0, 40))
        busy = 1 + 1.6 * max(0.0, 1 - abs(share - 0.55) * 4)  # a rush in the middle
        waited = timedelta(seconds=chance.expovariate(1 / (1.5 * busy**3)))
        took = timedelta(seconds=chance.lognormvariate(1.0, 0.8) * busy)
        if created + waited + took > now - timedelta(seconds=4):
            continue
        bad = chance.random() < 0.035 * busy
        status = Status.KILLED if chance.random() < 0.006 else Status.FAILED if bad else Status.SUCCEEDED
        title, slot = chance.choice(WORK), f"shop.{chance.randrange(4)}.8f1c{chance.randrange(4096):03x}"
        job_id = f"job-{created:%Y%m%d-%H%M%S}-{created.microsecond // 1000:03d}00{chance.getrandbits(64):016x}"
        ended = created + waited + took
        at = {name: timestamp(moment) for name, moment in (("c", created), ("s", created + waited), ("e", ended))}
        place = f"agents/Runner/completed/{status}"
        error = {"category": "step_failed", "message": "step 1: exit code 2"} if status is Status.FAILED else None
        hop = Hop(at=at["e"], role="Runner", attempt=1, reason=Reason.COMMITTED, to=place, by=slot, note=None)
        life = Lifecycle(
            job_id=job_id, role="Runner", status=status, attempt=1, hops=(hop,), created_at=at["c"], error=error,
            enqueued_at=at["c"], updated_at=at["e"], first_claimed_at=at["s"], finalized_at=at["e"], agent=slot,
        )  # fmt: skip
        home = root / place / job_id
        home.mkdir(parents=True)
        (home / "job.json").write_bytes(life.to_json())
        words = title.split()
        step = {"step_number": 1, "tool": "unix", "command": words[0], "args": words[1:]}
        (home / "prompt.json").write_text(json.dumps({"name": title, "steps": [step]}))
        whose = {"job_id": job_id, "role": "Runner"}
        lines += [
            (created, {"event": "enqueued", "actor": "cli-ann", **whose, "status": "queued", "attempt": 0}),
            (
                created + waited,
                {"event": "claimed", "actor": slot, **whose, "from": "queued", "status": "in_progress", "attempt": 1},
            ),
            (
                ended,
                {
                    "event": "committed",
                    "actor": slot,
                    **whose,
                    "from": "in_progress",
                    "status": str(status),
                    "attempt": 1,
                },
            ),
        ]
    (root / "logs").mkdir(exist_ok=True)
    with (root / "logs/audit.log").open("a") as log:
        for moment, line in sorted(lines, key=lambda pair: pair[0]):
            log.write(json.dumps({"ts": timestamp(moment), **line}) + "\n")


def program(root: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "farro", *args], cwd=root, text=True, capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        print(f"farro {' '.join(args)}: {done.stdout}{done.stderr}", file=sys.stderr)
    return done.stdout


def settle(root: Path) -> None:
    """Write config, tasks and answers."""
    root.mkdir(parents=True)
    program(root, "init")
    config = json.loads((root / "agents-config.json").read_text())
    config["durability"] = "process"
    config["retry"] = {"max_attempts": 1}
    config["budgets"] = {"day_usd": 5.0}
    config["providers"] = {"script": {"kind": "scripted", "file": "answers.json"}}
    (root / "agents-config.json").write_text(json.dumps(config))
    (root / "answers.json").write_text(json.dumps({"answers": ANSWERS}))
    (root / "tasks").mkdir(exist_ok=True)
    for folder in ("shop", "tests"):
        (root / folder).mkdir(exist_ok=True)
    shared = {"allowed_paths": ["shop/", "tests/"], "success": "All tests pass."}
    for name, task in TASKS.items():
        (root / f"tasks/{name}.json").write_text(json.dumps({"id": name, **shared, **task}))


def ask(root: Path, task: str, job: str) -> None:
    first = TASKS[task]["workflow"][0]
    prompt = {
        "role": first["role"], "rubric": first["rubric"], "allowed_paths": ["shop/"], "success": "All tests pass.",
        "routing": {"mode": "manager"}, "inputs": {"task_id": task},
    }  # fmt: skip
    (root / "prompt.json").write_text(json.dumps(prompt))
    program(root, "enqueue", "--prompt-json", "prompt.json", "--id", job)


@contextlib.contextmanager
def at_work(root: Path) -> Iterator[str]:
    """Run workers, a manager and the server, and end them afterwards; yield the link to sign in."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **options: Any) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-m", "farro", *args], cwd=root, text=True, stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options},
        )  # fmt: skip
        started.append(made)
        return made

    try:
        for service in ("manager", "watchdog", "orchestrator"):
            start(service)
        for role in ("Architect", "SeniorEngineer", "CodeReviewer", "DocWriter"):
            start("worker", "--role", role, "--workers", "1")
        start("worker", "--workers", "4")
        web = start("web", "--bind", "127.0.0.1:0", stderr=subprocess.PIPE)
        assert web.stderr is not None
        for line in web.stderr:
            found = re.search(r"http://\S+", line)
            if found:
                yield found.group()
                break
    finally:
        if (root / "swarm.yaml").exists():
            program(root, "swarm", "stop", "demo")
            program(root, "swarm", "remove", "demo")
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def play(root: Path) -> None:
    """Make the current state: a release in progress, tasks at several stages, a queue."""
    ask(root, "checkout", "checkout-41")
    ask(root, "rate-limits", "rate-limits-7")
    with farro.open(root) as queue:
        for number in range(19):
            queue.enqueue({"name": WORK[number % len(WORK)], "steps": [{"id": "1", "command": "true"}]})
        queue.enqueue(RELEASE, id="release-2-4")
        for number in range(3):
            queue.enqueue({"name": WORK[number], "steps": [{"id": "1", "command": "sleep", "args": ["900"]}]})
        time.sleep(8)
        for number in range(26):
            queue.enqueue({"name": WORK[-number % len(WORK)], "steps": [{"id": "1", "command": "true"}]})
        queue.enqueue({"name": "Train the ranking", "steps": [{"id": "1", "command": "true"}]}, tags=["gpu"])
        queue.enqueue({"name": "Nightly backup", "steps": [{"id": "1", "command": "true"}]}, delay="6h")


def swarm(root: Path) -> None:
    """Return the sample of examples/, with the Python that runs this script."""
    shutil.copytree(ROOT / "examples", root / "examples")
    plan = (ROOT / "examples/swarm/plan.yaml").read_text().replace("[python,", f"[{sys.executable},")
    (root / "swarm.yaml").write_text(plan.replace("rate: 10", "rate: 40"))
    program(root, "swarm", "apply", "swarm.yaml")
    program(root, "swarm", "start", "demo")


def shoot(page: Page, url: str, name: str, scheme: str) -> None:
    page.goto(f"{url}/#/{PAGES[name]}")
    page.locator("main").wait_for()
    page.wait_for_timeout(2500)
    if name == "history":
        page.get_by_role("slider").focus()
        for _ in range(150):
            page.keyboard.press("ArrowLeft")
        page.evaluate("() => document.activeElement.blur()")
        page.wait_for_timeout(1500)
    path = IMAGES / f"{name}-{scheme}.png"
    path.write_bytes(smaller(page, page.screenshot()))
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size // 1000} KB", flush=True)
    if size > MOST_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_BYTES // 1000} KB")


def smaller(page: Page, png: bytes) -> bytes:
    """Return the picture in 256 colours: a third of the bytes, no visible difference. The browser chooses them."""
    told = page.evaluate(QUANTISE, base64.b64encode(png).decode())
    width, height, cells = told["width"], told["height"], base64.b64decode(told["cells"])
    body = b"".join(b"\0" + cells[row * width : (row + 1) * width] for row in range(height))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)), (b"PLTE", bytes(told["colours"]))]
    parts += [(b"IDAT", zlib.compress(body, 9)), (b"IEND", b"")]
    return MAGIC + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all started processes are ended
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of: {' '.join(PAGES)}; all when none is named")
    names = parser.parse_args().names or list(PAGES)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium; scripts/packages.sh chromium fonts-inter fonts-jetbrains-mono")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="farro-images-") as folder:
        root = Path(folder, "shop")
        os.environ["XDG_STATE_HOME"] = str(Path(folder, "state"))
        settle(root)
        past(root, 1400, random.Random(7))
        with at_work(root) as link:
            play(root)
            if "swarms" in names:
                swarm(root)
            url = link.split("/login")[0]
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
                context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
                page = context.new_page()
                page.goto(link)
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    for name in names:
                        shoot(page, url, name, scheme)
                browser.close()


if __name__ == "__main__":
    main()
