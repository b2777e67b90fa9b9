"""List the attacks of hostile.py, which cannot be imported here because it reads its surroundings at import."""

from __future__ import annotations

import re
from pathlib import Path

WAYS = re.findall(r"^@way\ndef (\w+)", Path(__file__).with_name("hostile.py").read_text(encoding="utf-8"), re.MULTILINE)
TALKERS = [way for way in WAYS if way.startswith(("talk_", "listen_"))]
READERS = [
    way for way in WAYS if way.startswith("read_")
]  # an agent's program reads a closed list; a step what its user can
