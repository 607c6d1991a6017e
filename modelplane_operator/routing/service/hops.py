"""The mark on requests that have passed the hub gateway to a user's endpoint, and the rule that rejects them.

A user's endpoint may have a name that leads back to the hub gateway, and so to itself: a request would loop until the
gateway has no sockets left. So requests to such endpoints get a header, and services with such endpoints reject
requests that have it. The header differs between hubs, so that a hub can be an endpoint of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from kubeloop.objects import Manifest

RESERVED: Final = "x-modelplane-"  # prefix of the operator's headers, which credentials must not use
NO_REQUEST: Final = f"{RESERVED}nobody"  # a header that clusters' gateways remove from every request
MOST_MATCHES: Final = 8  # per rule: the minimum that an implementation of the Gateway API must support


def mark_of(hub_uid: str) -> str:
    """Return the header of a hub, a hash of its uid, which does not reveal the uid."""
    return f"{RESERVED}hop-{hashlib.sha256(hub_uid.encode()).hexdigest()[:16]}"


def loop_header(mark: str) -> Manifest:
    """Return the header that requests to users' endpoints get."""
    return {"name": mark, "value": "1"}


def refusals(mark: str, rules: Sequence[Manifest], nowhere: Manifest) -> Iterator[Manifest]:
    """Yield rules that lead marked requests nowhere, at the paths of the given rules."""
    paths = list(dict.fromkeys(match["path"]["value"] for rule in rules for match in rule["matches"]))
    header = {"type": "Exact", **loop_header(mark)}
    for start in range(0, len(paths), MOST_MATCHES):
        batch = paths[start : start + MOST_MATCHES]
        yield {
            "matches": [{"path": {"type": "PathPrefix", "value": path}, "headers": [header]} for path in batch],
            "backendRefs": [nowhere],
            "timeouts": {"request": "0s"},
        }
