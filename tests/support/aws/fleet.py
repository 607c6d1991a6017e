"""An AWS for a local fleet: it is to be had in the fleet's network, and clusters on EKS are clusters of the fleet."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localfleet.fleet import Fleet
from tests.support.aws.server import REVIEWS, SECRETS, AwsServer, aws_server
from tests.support.clouds import given_out

PORT = 8480
URL = f"http://10.90.0.1:{PORT}"
"""Where the fleet's network has it: at its end of the hub's wire."""
TOKEN_WEBHOOK = f"{URL}{REVIEWS.rstrip('/')}"
"""What the fleet's clusters are started with, so that they take tokens of EKS."""
QUICK = {"cluster": 8.0, "nodegroup": 6.0, "addon": 3.0, "update": 3.0, "deletion": 4.0}
"""The seconds that EKS takes, for somebody who watches; in the real world it is minutes."""
ENVIRONMENT = {"AWS_ENDPOINT_URL": URL}
"""What leads an operator there."""


@contextmanager
def aws_of(fleet: Fleet, *workers: str) -> Iterator[AwsServer]:
    """Whoever asks it for a cluster is given one of these."""
    with aws_server(fleet.listen(PORT), ticks=True, takes=QUICK, given_out=given_out(fleet, *workers)) as aws:
        yield aws


def credentials() -> Mapping[str, Any]:
    """A Secret with the account's keys."""
    (key, secret), *_ = SECRETS.items()
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "aws", "namespace": "modelplane-system"},
        "data": {"credentials": base64.b64encode(text.encode()).decode()},
    }
