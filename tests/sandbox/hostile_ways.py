"""The names of the ways that hostile.py knows: it cannot be imported here, for it looks at where it stands first."""

from __future__ import annotations

import re
from pathlib import Path

WAYS = re.findall(r"^@way\ndef (\w+)", Path(__file__).with_name("hostile.py").read_text(encoding="utf-8"), re.MULTILINE)
