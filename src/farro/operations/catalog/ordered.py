"""A sorted set of texts in chunks: an insert or removal moves one chunk, however many there are.

What the texts mean lives in `book`. A plain list would move half a megabyte for each job that leaves the head of a deep
queue, which a busy queue does thousands of times a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

LOAD = 512


class Ordered:
    """Invariant: no chunk is empty, each is sorted, and `_heads` has the first text of each."""

    __slots__ = ("_chunks", "_heads", "_size")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        found = sorted(set(texts))
        self._chunks = [found[at : at + LOAD] for at in range(0, len(found), LOAD)]
        self._heads = [chunk[0] for chunk in self._chunks]
        self._size = len(found)

    def __len__(self) -> int:
        return self._size

    def add(self, text: str) -> None:
        """Nothing happens where it is there already."""
        if not self._chunks:
            self._chunks, self._heads, self._size = [[text]], [text], 1
            return
        at = self._chunk_of(text)
        chunk = self._chunks[at]
        place = bisect_left(chunk, text)
        if place < len(chunk) and chunk[place] == text:
            return
        chunk.insert(place, text)
        self._heads[at] = chunk[0]
        self._size += 1
        if len(chunk) > 2 * LOAD:
            half = chunk[LOAD:]
            del chunk[LOAD:]
            self._chunks.insert(at + 1, half)
            self._heads.insert(at + 1, half[0])

    def discard(self, text: str) -> None:
        if not self._chunks:
            return
        at = self._chunk_of(text)
        chunk = self._chunks[at]
        place = bisect_left(chunk, text)
        if place >= len(chunk) or chunk[place] != text:
            return
        del chunk[place]
        self._size -= 1
        if chunk:
            self._heads[at] = chunk[0]
        else:
            del self._chunks[at], self._heads[at]

    def upwards(self, after: str | None = None) -> Iterator[str]:
        """In their order, those greater than `after`. Not to be changed meanwhile."""
        if after is None or not self._chunks:
            for chunk in self._chunks:
                yield from chunk
            return
        at = self._chunk_of(after)
        chunk = self._chunks[at]
        place = bisect_left(chunk, after)
        yield from chunk[place + (place < len(chunk) and chunk[place] == after) :]
        for chunk in self._chunks[at + 1 :]:
            yield from chunk

    def downwards(self, before: str | None = None) -> Iterator[str]:
        """From the greatest on, those smaller than `before`. Not to be changed meanwhile."""
        if before is None or not self._chunks:
            for chunk in reversed(self._chunks):
                yield from reversed(chunk)
            return
        at = self._chunk_of(before)
        chunk = self._chunks[at]
        yield from reversed(chunk[: bisect_left(chunk, before)])
        for chunk in reversed(self._chunks[:at]):
            yield from reversed(chunk)

    def _chunk_of(self, text: str) -> int:
        """The last chunk whose first text is not greater: where it is, or belongs."""
        at = bisect_left(self._heads, text)
        if at < len(self._heads) and self._heads[at] == text:
            return at
        return max(0, at - 1)
