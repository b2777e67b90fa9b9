"""List the attacks of hostile.py, which cannot be imported here because it reads its surroundings at import."""

from __future__ import annotations

import re
from pathlib import Path

WAYS = re.findall(r"^@way\ndef (\w+)", Path(__file__).with_name("hostile.py").read_text(encoding="utf-8"), re.MULTILINE)
