"""A process in the place of the one that reads what strangers send, which says what that never does."""

from __future__ import annotations

import os
import socket
import sys
import time

SAID = {
    "sizes": b"\xff" * 8,
    "json": b"\0\0\0\2\0\0\0\0}}",
    "a part too large": b"\0\0\0\2\0\2\0\0[]",
    "an end": b"",
}

if __name__ == "__main__":
    operator = socket.socket(fileno=sys.stdin.fileno())
    operator.sendall(SAID[os.environ.get("GARBLED", "sizes")])
    if os.environ.get("GARBLED") == "an end":
        operator.close()
    time.sleep(3600)
