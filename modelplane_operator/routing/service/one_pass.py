"""Render a service's rules for gateways that rewrite paths and set headers for each backend.

`two_passes.py` is for gateways that do so for a full rule only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import names
from modelplane_operator.routing.service.api_keys import withheld
from modelplane_operator.routing.service.hops import loop_header
from modelplane_operator.routing.service.weights import BackendGroup, Target, WeightedEndpoint, fit_weights

PORT = 80  # port of the operator's Services without endpoints


def rules(
    service: Key, groups: Sequence[BackendGroup], *, relay_port: int, mark: str = "", guarded: bool = False
) -> Iterator[Manifest]:
    """Yield the rules of a service: first the one for clients, then those for groups of its endpoints."""
    return (_render_rule(service, group, relay_port, mark=mark, guarded=guarded) for group in groups)


def fallback(service: Key) -> Manifest:
    """Return the backend of a rule without other backends."""
    return _build_reference(names.service_route(*service), PORT, 1)


def _render_rule(service: Key, group: BackendGroup, relay_port: int, *, mark: str, guarded: bool) -> Manifest:
    """Return the rule of a group."""
    weights = fit_weights([member.weight for member in group.members])
    # members of a group get the path without the group's part
    unchanged = names.service_path(*service) if group.number else None
    backends = [
        _render_backend(service, *weighted_member, relay_port, unchanged=unchanged, mark=mark, guarded=guarded)
        for weighted_member in zip(group.members, weights, strict=True)
    ]
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": names.service_path(*service, group.number)}}],
        "backendRefs": backends or [fallback(service)],
        "timeouts": {"request": "0s"},  # no timeout: responses may stream for any time
    }


def _render_backend(
    service: Key,
    member: WeightedEndpoint | BackendGroup,
    weight: int,
    relay_port: int,
    *,
    unchanged: str | None,
    mark: str,
    guarded: bool,
) -> Manifest:
    """Return one backend of a rule: an endpoint, or a group by way of the gateway itself."""
    if isinstance(member, BackendGroup):
        rewrite = _build_path_rewrite(names.service_path(*service, member.number))
        filters = [{"type": "URLRewrite", "urlRewrite": rewrite}]
        return {**_build_reference(names.service_relay(*service), relay_port, weight), "filters": filters}
    reference = _build_reference(names.endpoint_backend(*member.endpoint.key), member.target.backend.port, weight)
    filters = [*_build_rewrites(member.target, unchanged), *_build_headers(member.target, mark=mark, guarded=guarded)]
    return {**reference, **({"filters": filters} if filters else {})}


def _build_reference(name: str, port: int, weight: int) -> Manifest:
    return {"group": "", "kind": "Service", "name": name, "port": port, "weight": weight}


def _build_rewrites(target: Target, unchanged: str | None) -> Iterator[Manifest]:
    """Yield the rewrite of the path and host; providers select a site by the host name."""
    path = unchanged if target.path is None else target.path
    rewrite = {
        **({"hostname": target.name} if target.name else {}),
        **(_build_path_rewrite(path) if path is not None else {}),
    }
    if rewrite:
        yield {"type": "URLRewrite", "urlRewrite": rewrite}


def _build_path_rewrite(path: str) -> Manifest:
    """Return the replacement of the matched prefix."""
    return {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}}


def _build_headers(target: Target, *, mark: str, guarded: bool) -> Iterator[Manifest]:
    """Yield the endpoint's own credentials, and the removal of the client's."""
    header = target.header
    added = [{"name": header.name, "value": header.value}] if header else []
    changes = {
        "set": [*added, *([loop_header(mark)] if mark and target.unproven else [])],
        "remove": withheld(header.name if header else None, guarded=guarded),
    }
    if non_empty := {change: headers for change, headers in changes.items() if headers}:
        yield {"type": "RequestHeaderModifier", "requestHeaderModifier": non_empty}
