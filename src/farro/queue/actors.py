"""Who asks: as the caps know them, and as an agent's name for what they did.

What they may do lives in admission.
"""

from __future__ import annotations

import os
import pwd
import re


def user() -> str:
    """Who that is, the kernel says: LOGNAME is anybody's to set."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def person(way: str = "cli") -> str:
    """Who asks and by which way, as an agent's name: for hops[] and for people."""
    import getpass  # here: only the verbs that change a job ask

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{way}-" + (re.sub(r"[^A-Za-z0-9_-]", "-", name)[:24] or "somebody")
