"""How the command talks to the fleet's supervisor: one JSON request and one JSON reply per connection to a socket.

Listening sockets travel with the request: they are opened outside, on the machine's own loopback, and served inside.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from localfleet.errors import FleetError

Message = dict[str, Any]
MAX_SOCKETS = 4
REQUEST_BYTES = 1 << 20


class NoFleetError(FleetError):
    """Nothing listens: the fleet is not up."""


def connected(path: Path) -> socket.socket:
    control = socket.socket(socket.AF_UNIX)
    try:
        control.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        control.close()
        raise NoFleetError("no fleet is up; start one: .venv/bin/python -m localfleet up") from error
    return control


def ask(path: Path, request: Message, sockets: Sequence[socket.socket] = ()) -> Message:
    """The supervisor's reply; its refusals become a FleetError here."""
    with connected(path) as control:
        socket.send_fds(control, [orjson.dumps(request)], [each.fileno() for each in sockets])
        control.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: control.recv(1 << 16), b""))
    if not reply:
        raise FleetError(f"the fleet's supervisor went away while it was asked to {request['verb']}")
    answer: Message = orjson.loads(reply)
    if "error" in answer:
        raise FleetError(answer["error"])
    return answer


def receive(control: socket.socket) -> tuple[Message, list[socket.socket]]:
    """One request and the sockets that came with it."""
    data, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, MAX_SOCKETS)
    while chunk := control.recv(REQUEST_BYTES):
        data += chunk
    return orjson.loads(data), [socket.socket(fileno=descriptor) for descriptor in descriptors]


def supervisor_pid(path: Path) -> int:
    """The process that listens, as its number is seen from here: the kernel vouches for it."""
    with connected(path) as control:
        credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[0]
