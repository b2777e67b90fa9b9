"""Check the kinds of providers: the built-in ones, and those of installed packages."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from farro.agents.providers.registry import BUILT_IN, UnknownProvider, kinds, make_provider
from farro.config.settings import ProviderSettings
from farro.testing.provider import request

MODULE = """
from farro.ports.provider import Answer

class Echo:
    tries = 2

    def __init__(self, name, settings, place):
        self.text = f"{name} {settings.options['volume']} {place.root} {place.environ['ECHO_KEY']}"

    def answer(self, request):
        return Answer(text=f"{self.text}: {request.messages[-1].text}")

    def close(self):
        pass

def make(name, settings, place):
    return Echo(name, settings, place)

nothing = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an installed distribution, as pip leaves one."""
    info = tmp_path / "acme_echo-1.0.dist-info"
    info.mkdir()
    (tmp_path / "acme_echo.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-echo\nVersion: 1.0\n")
    lines = ["[farro.providers]", "shout = acme_echo:make", "gone = acme_gone:make", "wrong = acme_echo:nothing"]
    (info / "entry_points.txt").write_text("\n".join([*lines, "openai = acme_echo:make", ""]))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_a_package_adds_a_kind() -> None:
    settings = ProviderSettings(kind="shout", options={"volume": 11})
    provider = make_provider("loud", settings, root="/here", environ={"ECHO_KEY": "k"})
    assert provider.answer(request(1)).text == "loud 11 /here k: What is the number?"
    assert provider.tries == 2
    assert "shout" in kinds()


@pytest.mark.usefixtures("package")
def test_no_package_replaces_a_built_in_kind() -> None:
    provider = make_provider("openai", ProviderSettings(), root="/", environ={})
    assert type(provider).__module__ == "farro.agents.providers.http"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("kind", ["gone", "wrong"])
def test_a_package_that_cannot_be_loaded_is_reported(kind: str) -> None:
    with pytest.raises(UnknownProvider, match=f"providers.p.kind: {kind} cannot be loaded from acme_"):
        make_provider("p", ProviderSettings(kind=kind), root="/", environ={})


def test_an_unknown_kind_is_reported_with_the_nearest_one() -> None:
    with pytest.raises(UnknownProvider, match=r"no provider opnai here; did you mean openai\? There is openai, google"):
        make_provider("p", ProviderSettings(kind="opnai"), root="/", environ={})


def test_a_provider_without_a_kind_has_the_kind_of_its_name() -> None:
    for kind in BUILT_IN:
        assert make_provider(kind, ProviderSettings(command=("true",)), root="/", environ={}).tries >= 1


HEAVY = ("pydantic", "pydantic_ai", "openai", "google.genai", "httpx", "httpx2", "anyio", "asyncio")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import farro", id="import farro"),
        pytest.param("from farro.cli.main import run; assert run(['--help']) == 0", id="farro --help"),
        pytest.param("from farro.cli.main import run; assert run(['provider-test', '--help']) == 0", id="its help"),
        pytest.param("from farro.cli.main import run; assert run(['worker', '--drain']) == 0", id="a Runner's worker"),
    ],
)
def test_only_a_call_imports_the_libraries(code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "farro", "init", "--root", str(tmp_path)], check=True, capture_output=True)
    subprocess.run(
        [sys.executable, "-m", "farro", "enqueue", "--", "true"], check=True, capture_output=True, cwd=tmp_path
    )
    look = f"import sys; print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{look}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_making_a_provider_imports_no_library() -> None:
    code = f"""
        import sys
        from farro.providers.registry import make_provider
        from farro.settings import ProviderSettings
        for kind in {list(BUILT_IN)!r}:
            make_provider("p", ProviderSettings(kind=kind, command=("true",)), root="/", environ={{}})
        print([name for name in {HEAVY[:-1]!r} if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
