"""Somebody else's process: it holds a file open and a text in memory, says where, and says its text when asked."""

from __future__ import annotations

import ctypes
import os
import sys

held = os.open(sys.argv[1], os.O_RDWR)
text = ctypes.create_string_buffer(b"unharmed", 8)
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # whoever wants to may trace it (Yama)
print(held, ctypes.addressof(text), flush=True)
for _ in sys.stdin:
    print(text.raw.decode(), flush=True)
