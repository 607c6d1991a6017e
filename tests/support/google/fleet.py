"""A Google Cloud for a local fleet: it is to be had in the fleet's network, and its clusters are those of the fleet."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from localfleet.fleet import Fleet
from tests.support.clouds import given_out
from tests.support.google.server import GoogleServer, google_server, hosts

HOST, REST_PORT, GRPC_PORT = "10.90.0.1", 8481, 8482
"""Where the fleet's network has it: at its end of the hub's wire."""
QUICK = {"service": 2, "network": 3, "subnetwork": 3, "cluster": 8, "nodepool": 5, "update": 3, "deletion": 4}
"""The seconds that Google takes, for somebody who watches; in the real world it is minutes."""
ENVIRONMENT = {
    "MODELPLANE_GOOGLE_ENDPOINTS": ",".join(f"{name}={url}" for name, url in hosts(REST_PORT, GRPC_PORT, HOST).items())
}
"""What leads an operator there."""


@contextmanager
def google_of(fleet: Fleet, *workers: str) -> Iterator[GoogleServer]:
    """Whoever asks it for a cluster is given one of these."""
    given = given_out(fleet, *workers)
    with (
        google_server(fleet.listen(REST_PORT), ticks=True, takes=QUICK, given_out=given) as google,
        _forwarded(fleet.listen(GRPC_PORT), google.grpc_port),
    ):
        yield google


@contextmanager
def _forwarded(listener: socket.socket, port: int) -> Iterator[None]:
    """Carry connections of a listener to a port of ours: gRPC's server listens in no other network than its process."""
    open_ones: list[socket.socket] = [listener]

    def accept() -> None:
        with suppress(OSError):  # it was shut
            while True:
                theirs, _ = listener.accept()
                ours = socket.create_connection(("127.0.0.1", port))
                open_ones.extend((theirs, ours))
                for pair in ((theirs, ours), (ours, theirs)):
                    Thread(target=pour, args=pair, daemon=True).start()

    def pour(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                sink.sendall(part)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    accepting = Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield
    finally:
        for one in open_ones:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        accepting.join()
        for one in open_ones:
            one.close()


def credentials(google: GoogleServer) -> Mapping[str, Any]:
    """A Secret with a key of a service account."""
    text = google.credentials(f"http://{HOST}:{REST_PORT}").text
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "google", "namespace": "modelplane-system"},
        "data": {"credentials": base64.b64encode(text.encode()).decode()},
    }
