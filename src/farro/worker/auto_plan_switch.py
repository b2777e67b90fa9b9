"""Turn auto-plan on or off while a manager runs: jobs/.auto-plan.

`managerd --auto-plan=off|on` writes it, the running manager reads it before it creates a job, and a later manager
starts with it. Without it the config decides. It applies to the managers of this root's folder, whatever the store.
"""

from __future__ import annotations

import json

from farro.host import fs
from farro.lazy_dataclass import dataclass

FILE = "jobs/.auto-plan"
_LIMIT = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoPlanSwitch:
    on: bool
    by: str
    at: str

    def __str__(self) -> str:
        return f"auto-plan is {'on' if self.on else 'off'}, by {self.by} since {self.at}"


def write(root: str, switch: AutoPlanSwitch) -> None:
    text = json.dumps({"on": switch.on, "by": switch.by, "at": switch.at}, ensure_ascii=False)
    fs.write_atomic(f"{root}/{FILE}", f"{text}\n".encode(), sync=True)


def read(root: str) -> AutoPlanSwitch | None:
    """Return the switch; None: the config decides. What cannot be read counts as off: no job is made by mistake."""
    try:
        data = json.loads(fs.read_bytes(f"{root}/{FILE}", _LIMIT))
        return AutoPlanSwitch(on=data["on"] is True, by=str(data["by"]), at=str(data["at"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return AutoPlanSwitch(on=False, by="an unknown user", at="an unknown time")


def is_on(root: str, *, default: bool) -> bool:
    found = read(root)
    return default if found is None else found.on
