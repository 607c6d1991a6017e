"""Render a service's rules for Envoy Gateway, which rewrites the path of a rule and not of a backend.

Endpoints need different paths. So with several endpoints, requests pass the gateway twice: the first rule picks an
endpoint by weight, writes its name into a header, and leads back to the gateway, where each endpoint has a rule. Groups
of endpoints that exceed a rule (`weights.py`) are passes in between. If the chosen endpoint is gone in the second pass,
another one is picked, since Envoys do not load a change all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import names
from modelplane_operator.routing.service import one_pass
from modelplane_operator.routing.service.api_keys import withheld
from modelplane_operator.routing.service.hops import loop_header
from modelplane_operator.routing.service.weights import BackendGroup, WeightedEndpoint, fit_weights

HEADER = "x-modelplane-to"


def rules(
    service: Key, groups: Sequence[BackendGroup], *, relay_port: int, mark: str = "", guarded: bool = False
) -> Iterator[Manifest]:
    """Yield the rules of a service, starting with the one that clients use."""
    first, *others = groups
    if not first.members:
        yield from one_pass.rules(service, groups, relay_port=relay_port)
        return
    prefix = names.service_path(*service)
    client_match = {"matches": [{"path": {"type": "PathPrefix", "value": prefix}}]}
    only_member = first.members[0]
    if len(first.members) == 1 and isinstance(only_member, WeightedEndpoint):
        yield {**client_match, **_render_endpoint(only_member, only_member.target.path, mark=mark, guarded=guarded)}
        return
    return_path = f"{prefix.rstrip('/')}~/"
    yield {**client_match, "filters": [_build_rewrite(path=return_path)], **_split(service, first, relay_port)}
    yield {"matches": [{"path": {"type": "PathPrefix", "value": return_path}}], **_split(service, first, relay_port)}
    for group in others:
        yield {**_match_header(return_path, _get_name(group)), **_split(service, group, relay_port)}
    for share in (member for group in groups for member in group.members if isinstance(member, WeightedEndpoint)):
        path = share.target.path
        endpoint_path = prefix if path is None else path
        yield {
            **_match_header(return_path, _get_name(share)),
            **_render_endpoint(share, endpoint_path, mark=mark, guarded=guarded),
        }


def _get_name(member: WeightedEndpoint | BackendGroup) -> str:
    """Return the header's value for an endpoint or a group."""
    return f"~{member.number}" if isinstance(member, BackendGroup) else member.endpoint.key.name


def _match_header(path: str, name: str) -> Manifest:
    """Return the match of requests for an endpoint or a group."""
    header = {"type": "Exact", "name": HEADER, "value": name}
    return {"matches": [{"path": {"type": "PathPrefix", "value": path}, "headers": [header]}]}


def _split(service: Key, group: BackendGroup, port: int) -> Manifest:
    """Return the part of a rule that picks a member of a group by weight."""
    weights = fit_weights([member.weight for member in group.members])
    relay = names.service_relay(*service)
    return {
        "backendRefs": [
            {
                **_build_reference(relay, port, weight),
                "filters": [_build_headers(set=[{"name": HEADER, "value": _get_name(member)}])],
            }
            for member, weight in zip(group.members, weights, strict=True)
        ],
        "timeouts": {"request": "0s"},  # no timeout: responses may stream for any time
    }


def _render_endpoint(share: WeightedEndpoint, path: str | None, *, mark: str, guarded: bool) -> Manifest:
    """Return the part of a rule that leads to an endpoint."""
    target = share.target
    rewrites = [_build_rewrite(path=path, name=target.name)] if path is not None or target.name else []
    reference = _build_reference(names.endpoint_backend(*share.endpoint.key), target.backend.port, 1)
    return {
        "filters": [*rewrites, *_build_credential_filters(share, mark=mark, guarded=guarded)],
        "backendRefs": [reference],
        "timeouts": {"request": "0s"},
    }


def _build_credential_filters(share: WeightedEndpoint, *, mark: str, guarded: bool) -> Iterator[Manifest]:
    """Yield the endpoint's own credentials and the removal of the client's; injected if a Secret has the full value."""
    header, added_headers = share.target.header, [loop_header(mark)] if mark and share.target.unproven else []
    removed = [HEADER, *withheld(header.name if header else None, guarded=guarded)]
    if header is not None and header.secret is None:
        # Envoy parses `%...%` in a value as an expression, and rejects all routes if it is malformed.
        added_headers = [{"name": header.name, "value": header.value.replace("%", "%%")}, *added_headers]
    yield _build_headers(set=added_headers, remove=removed)
    if header is None or header.secret is None:
        return
    injection = {"group": "gateway.envoyproxy.io", "kind": "HTTPRouteFilter"}
    name = names.endpoint_backend(*share.endpoint.key)
    yield {"type": "ExtensionRef", "extensionRef": {**injection, "name": name}}


def _build_headers(**changes: list[Manifest] | list[str]) -> Manifest:
    """Return a filter that changes headers."""
    non_empty = {change: headers for change, headers in changes.items() if headers}
    return {"type": "RequestHeaderModifier", "requestHeaderModifier": non_empty}


def _build_rewrite(*, path: str | None = None, name: str | None = None) -> Manifest:
    """Return a filter that rewrites the path and host."""
    path_rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}} if path is not None else {}
    return {"type": "URLRewrite", "urlRewrite": {**({"hostname": name} if name else {}), **path_rewrite}}


def _build_reference(name: str, port: int, weight: int) -> Manifest:
    return {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": name, "port": port, "weight": weight}
