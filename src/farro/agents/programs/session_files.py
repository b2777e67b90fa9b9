"""Look for the files in which programs keep their sessions. An agent can write them: they are compared, not parsed."""

from __future__ import annotations

import glob
import re

from farro.host import fs

_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_MOST = 64 << 20  # bytes of a file that are searched


def is_session_id(text: str) -> bool:
    """Tell whether a text can be the id of a session: no path and no option."""
    return re.fullmatch(_ID, text) is not None


def session_file(home: str, *parts: str) -> str | None:
    """Return a file or folder below the home; None if there is none. `*` in a part stands for anything."""
    pattern = "/".join((glob.escape(home), *(_escape(part) for part in parts)))
    return next(iter(sorted(glob.glob(pattern, include_hidden=True))), None)


def file_mentions(path: str, text: str) -> bool:
    """Tell whether a file contains a text, such as the id of a session in a database."""
    try:
        return text.encode() in fs.read_bytes(path, _MOST)
    except OSError:
        return False


def _escape(part: str) -> str:
    return "*".join(glob.escape(piece) for piece in part.split("*"))
