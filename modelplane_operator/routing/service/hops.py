"""The mark of a request that has passed the hub gateway to an endpoint of a user, and the rule that refuses it there.

A user's endpoint may lead to a name that leads back to the hub gateway, and from there to itself: one request would go
round until the gateway has no more sockets. So what leaves for such an endpoint carries a header, and a service that
has one answers no request with it. The header is of one hub: another one may be such an endpoint, and have its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from kubeloop.objects import Manifest

RESERVED: Final = "x-modelplane-"  # what headers of ours begin with: no credentials are sent in one
NO_REQUEST: Final = f"{RESERVED}nobody"  # a header that gateways of clusters take away from every request
MOST_MATCHES: Final = 8  # of a rule: the least that an implementation of the Gateway API takes


def mark_of(hub_uid: str) -> str:
    """The header of a hub, by what nobody can change about it; it tells nobody what that is."""
    return f"{RESERVED}hop-{hashlib.sha256(hub_uid.encode()).hexdigest()[:16]}"


def marked(mark: str) -> Manifest:
    """What a request gets on its way to an endpoint of a user."""
    return {"name": mark, "value": "1"}


def refusals(mark: str, rules: Sequence[Manifest], nowhere: Manifest) -> Iterator[Manifest]:
    """The rules that lead a request with the mark nowhere, at the paths of these rules."""
    paths = list(dict.fromkeys(match["path"]["value"] for rule in rules for match in rule["matches"]))
    header = {"type": "Exact", **marked(mark)}
    for start in range(0, len(paths), MOST_MATCHES):
        some = paths[start : start + MOST_MATCHES]
        yield {
            "matches": [{"path": {"type": "PathPrefix", "value": path}, "headers": [header]} for path in some],
            "backendRefs": [nowhere],
            "timeouts": {"request": "0s"},
        }
