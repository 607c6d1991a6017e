"""A Google Cloud for a local fleet: it is to be had in the fleet's network, and its clusters are those of the fleet."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localfleet.fleet import Fleet
from localfleet.forwarder import Forwarder
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
    forwarder = Forwarder()  # gRPC's server listens by itself, and in no other network than its process
    with google_server(
        fleet.listen(REST_PORT), ticks=True, takes=QUICK, given_out=given_out(fleet, *workers)
    ) as google:
        forwarder.add("GKE", fleet.listen(GRPC_PORT), lambda: ("127.0.0.1", google.grpc_port), lambda: 0.0)
        try:
            yield google
        finally:
            forwarder.remove("GKE")


def credentials(google: GoogleServer) -> Mapping[str, Any]:
    """A Secret with a key of a service account."""
    text = google.credentials(f"http://{HOST}:{REST_PORT}").text
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "google", "namespace": "modelplane-system"},
        "data": {"credentials": base64.b64encode(text.encode()).decode()},
    }
