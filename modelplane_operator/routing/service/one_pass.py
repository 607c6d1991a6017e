"""The rules of a service in the Gateway API's own words: a path is rewritten, and headers set, for each backend.

`two_passes.py` is for gateways that do so for a whole rule alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import names
from modelplane_operator.routing.service.api_keys import withheld
from modelplane_operator.routing.service.hops import marked
from modelplane_operator.routing.service.weights import BackendGroup, Target, WeightedEndpoint, fitted

PORT = 80  # of Services of ours that lead to no endpoint


def rules(
    service: Key, groups: Sequence[BackendGroup], *, relay_port: int, mark: str = "", guarded: bool = False
) -> Iterator[Manifest]:
    """The rules of a service, the one that clients meet first; the others are for groups of its endpoints."""
    return (_rule(service, group, relay_port, mark=mark, guarded=guarded) for group in groups)


def fallback(service: Key) -> Manifest:
    """What a rule without backends leads to."""
    return _reference(names.service_route(*service), PORT, 1)


def _rule(service: Key, group: BackendGroup, relay_port: int, *, mark: str, guarded: bool) -> Manifest:
    weights = fitted([member.weight for member in group.members])
    unchanged = names.service_path(*service) if group.number else None  # the path of a group is nothing to its members
    backends = [
        _backend(service, *each, relay_port, unchanged=unchanged, mark=mark, guarded=guarded)
        for each in zip(group.members, weights, strict=True)
    ]
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": names.service_path(*service, group.number)}}],
        "backendRefs": backends or [fallback(service)],
        "timeouts": {"request": "0s"},  # none: answers may stream for as long as they like
    }


def _backend(
    service: Key,
    member: WeightedEndpoint | BackendGroup,
    weight: int,
    relay_port: int,
    *,
    unchanged: str | None,
    mark: str,
    guarded: bool,
) -> Manifest:
    if isinstance(member, BackendGroup):
        rewrite = _replaced(names.service_path(*service, member.number))
        filters = [{"type": "URLRewrite", "urlRewrite": rewrite}]
        return {**_reference(names.service_relay(*service), relay_port, weight), "filters": filters}
    reference = _reference(names.endpoint_backend(*member.endpoint.key), member.target.backend.port, weight)
    filters = [*_rewrites(member.target, unchanged), *_headers(member.target, mark=mark, guarded=guarded)]
    return {**reference, **({"filters": filters} if filters else {})}


def _reference(name: str, port: int, weight: int) -> Manifest:
    return {"group": "", "kind": "Service", "name": name, "port": port, "weight": weight}


def _rewrites(target: Target, unchanged: str | None) -> Iterator[Manifest]:
    """The path that the endpoint wants, and its own name: providers tell their sites apart by it."""
    path = unchanged if target.path is None else target.path
    rewrite = {
        **({"hostname": target.name} if target.name else {}),
        **(_replaced(path) if path is not None else {}),
    }
    if rewrite:
        yield {"type": "URLRewrite", "urlRewrite": rewrite}


def _replaced(path: str) -> Manifest:
    return {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}}


def _headers(target: Target, *, mark: str, guarded: bool) -> Iterator[Manifest]:
    """The endpoint's own credentials, and never the client's beside them."""
    header = target.header
    added = [{"name": header.name, "value": header.value}] if header else []
    changes = {
        "set": [*added, *([marked(mark)] if mark and target.unproven else [])],
        "remove": withheld(header.name if header else None, guarded=guarded),
    }
    if kept := {change: those for change, those in changes.items() if those}:
        yield {"type": "RequestHeaderModifier", "requestHeaderModifier": kept}
