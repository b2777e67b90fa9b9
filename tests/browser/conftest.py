"""Fixtures of the browser tests: Debian's chromium through playwright, servers, and pages without console errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from browser.site import PATIENCE_S, Site, furnish, init
from support import need

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = need("chromium", "the dashboard is looked at in a real browser; scripts/packages.sh installs it")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a root with jobs of every kind once; tests copy it."""
    return furnish(tmp_path_factory.mktemp("model") / "shop")


@pytest.fixture(scope="session")
def furnished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Serve a copy of the root for tests that change nothing."""
    root = shutil.copytree(model, tmp_path_factory.mktemp("furnished") / "shop", symlinks=True)
    site = Site(root=root).start()
    yield site
    site.stop()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Site]:
    """Serve an empty root for one test."""
    site = Site(root=init(tmp_path / "shop")).start()
    yield site
    site.stop()


@dataclass
class Visit:
    """A signed-in page. `complaints` collects console errors, console warnings, and requests to other hosts."""

    site: Site
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # console messages that the test provokes, possibly after its last line

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: self._asked(asked.url))

    def _said(self, told: ConsoleMessage) -> None:
        if told.type in ("error", "warning"):
            self.complaints.append(f"{told.text} ({told.location['url']})")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.site.url, "data:", "blob:")):
            self.complaints.append(f"asked elsewhere: {url}")

    def open(self, place: str) -> Page:
        self.page.goto(f"{self.site.url}/#/{place}")
        self.page.locator("main").wait_for()
        self.page.evaluate(TWO_FRAMES)  # until then the previous page may be shown, and the focus may move
        return self.page


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visit]]:
    """Return `visit(site)`, which signs in by a link. At the end the browser's console must be empty."""
    visits: list[Visit] = []

    def come(site: Site, **options: object) -> Visit:
        context = chromium.new_context(viewport={"width": 1440, "height": 900}, **options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_S * 1000)
        made = Visit(site=site, context=context, page=context.new_page())
        visits.append(made)
        made.page.goto(site.link())
        made.page.locator("main").wait_for()
        return made

    yield come
    for one in visits:
        one.context.close()
    told = [(one, complaint) for one in visits for complaint in one.complaints]
    assert not [complaint for one, complaint in told if not any(word in complaint for word in one.expected)]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Serve an empty root for tests that change nothing."""
    site = Site(root=init(tmp_path_factory.mktemp("bare") / "shop")).start()
    yield site
    site.stop()
