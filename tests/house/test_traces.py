"""Check that no file which can be committed names a package registry or a path of one machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support import ROOT, need

# Joined here, because this file must not name what it forbids.
REGISTRIES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("anaconda", "org"),
        ("rubygems", "org"),
        ("proxy", "golang", "org"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("docker", "io/"),  # without the slash it is a package of Debian
        ("ghcr", "io"),
        ("quay", "io"),
    )
)
# `{root}/work`, `a/work` and `//work` are parts of other paths and URLs; only an absolute path is meant.
MACHINE_PATH = re.compile(r"(?<![\w.\-/})\]>~$*])/(?:work|root)(?![\w-])")
FORBIDDEN = re.compile("|".join([*map(re.escape, REGISTRIES), MACHINE_PATH.pattern]))


def files_that_can_be_committed(tmp_path: Path) -> list[str]:
    git = need("git", "the list of files that are not ignored")
    listing = ["ls-files", "-z", "--others", "--exclude-standard"]
    answer = subprocess.run([git, *listing, "--cached"], cwd=ROOT, capture_output=True, check=False)
    if answer.returncode != 0:
        # git refuses an unpacked archive or another user's repository; an empty one reads the same ignore rules.
        empty = str(tmp_path / "empty.git")
        subprocess.run([git, "init", "--quiet", "--bare", empty], check=True, capture_output=True)
        beside = [git, f"--git-dir={empty}", f"--work-tree={ROOT}", *listing]
        answer = subprocess.run(beside, cwd=ROOT, capture_output=True, check=True)
    names = answer.stdout.decode("utf-8", "surrogateescape").split("\0")
    return [name for name in names if name and os.path.isfile(os.path.join(ROOT, name))]


def test_no_file_names_a_package_registry_or_a_path_of_one_machine(tmp_path: Path) -> None:
    names = files_that_can_be_committed(tmp_path)
    assert "pyproject.toml" in names
    found = []
    for name in names:
        text = Path(ROOT, name).read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            found += [f"{name}:{number}: {match.group()}" for match in FORBIDDEN.finditer(line)]
    assert found == []


def test_the_search_finds_forbidden_names() -> None:
    for line in (f"https://{REGISTRIES[0]}/simple", "cd /" + "work/main", "HOME=/" + "root", '"/' + 'root/x"'):
        assert FORBIDDEN.search(line), line
    for line in ("{root}/work/x", "$ROOT/root", "the /workers page", "https://example.net//root", "a/work"):
        assert not FORBIDDEN.search(line), line
