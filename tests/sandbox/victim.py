"""A process of another user that holds an open file and a text in memory, and prints the text on request."""

from __future__ import annotations

import ctypes
import os
import sys

held = os.open(sys.argv[1], os.O_RDWR)
text = ctypes.create_string_buffer(b"unharmed", 8)
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # any process may trace it (Yama)
print(held, ctypes.addressof(text), flush=True)
for _ in sys.stdin:
    print(text.raw.decode(), flush=True)
