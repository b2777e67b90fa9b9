"""Find programs."""

from __future__ import annotations

import os


def which(name: str, path: str | None, cwd: str) -> str | None:
    """Return the file that `name` executes, as execvp finds it: a path as it is, a bare name along `path`, both from
    `cwd`."""
    if os.sep in name:
        places = [name]
    else:
        places = [f"{folder or '.'}/{name}" for folder in (os.defpath if path is None else path).split(os.pathsep)]
    for place in places:
        file = place if place.startswith(os.sep) else os.path.join(cwd, place)
        if os.access(file, os.X_OK) and os.path.isfile(file):  # in this order: most folders do not have it
            return file
    return None
