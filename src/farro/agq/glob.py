"""Redis's glob patterns: `*`, `?`, `[a-c]`, `[^a]` and `\\x`, in time that no pattern can blow up.

Keys and channels that they are held against live elsewhere.
"""

from __future__ import annotations

_ANY, _ONE = object(), object()
MAX_LENGTH = 1024


class Pattern:
    def __init__(self, text: bytes) -> None:
        self._items = list(_items(text[:MAX_LENGTH]))

    def fits(self, name: bytes) -> bool:
        """Greedy with one way back, to the last `*`: linear in practice, quadratic at worst; a regular expression with
        many stars is exponential."""
        items, at, place, star, mark = self._items, 0, 0, -1, 0
        while place < len(name):
            if at < len(items) and items[at] is _ANY:
                star, mark, at = at, place, at + 1
            elif at < len(items) and (items[at] is _ONE or _in(items[at], name[place])):
                at, place = at + 1, place + 1
            elif star >= 0:
                mark += 1
                at, place = star + 1, mark
            else:
                return False
        return all(item is _ANY for item in items[at:])


def _in(item: object, byte: int) -> bool:
    return isinstance(item, frozenset) and byte in item


def _items(text: bytes) -> list[object]:
    items: list[object] = []
    at = 0
    while at < len(text):
        char = text[at : at + 1]
        at += 1
        if char == b"*":
            if not items or items[-1] is not _ANY:
                items.append(_ANY)
        elif char == b"?":
            items.append(_ONE)
        elif char == b"[":
            end = text.find(b"]", at)
            end = len(text) if end < 0 else end
            items.append(_set(text[at:end]))
            at = end + 1
        elif char == b"\\" and at < len(text):
            items.append(frozenset({text[at]}))
            at += 1
        else:
            items.append(frozenset({char[0]}))
    return items


def _set(inside: bytes) -> frozenset[int]:
    without = inside.startswith(b"^")
    rest = inside[1:] if without else inside
    members: set[int] = set()
    at = 0
    while at < len(rest):
        if rest[at + 1 : at + 2] == b"-" and at + 2 < len(rest):
            low, high = sorted((rest[at], rest[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(rest[at])
            at += 1
    return frozenset(range(256)) - members if without else frozenset(members)
