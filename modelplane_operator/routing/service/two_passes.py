"""The rules of a service for a gateway that rewrites the path of a rule, and not of a backend: Envoy Gateway.

Endpoints want paths of their own. So where a service has several, requests pass the gateway twice: the first rule
shares them out, names the endpoint in a header, and leads back to the gateway; there each endpoint has a rule. Groups
of more endpoints than a rule takes (`weights.py`) are passes in between. A request whose endpoint is gone when it comes
back is shared out anew: Envoys do not learn of a change all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import names
from modelplane_operator.routing.service import one_pass
from modelplane_operator.routing.service.api_keys import withheld
from modelplane_operator.routing.service.hops import marked
from modelplane_operator.routing.service.weights import BackendGroup, WeightedEndpoint, fitted

HEADER = "x-modelplane-to"


def rules(
    service: Key, groups: Sequence[BackendGroup], *, relay_port: int, mark: str = "", guarded: bool = False
) -> Iterator[Manifest]:
    """The rules of a service, the one that clients meet first."""
    first, *others = groups
    if not first.members:
        yield from one_pass.rules(service, groups, relay_port=relay_port)
        return
    prefix = names.service_path(*service)
    met = {"matches": [{"path": {"type": "PathPrefix", "value": prefix}}]}
    alone = first.members[0]
    if len(first.members) == 1 and isinstance(alone, WeightedEndpoint):
        yield {**met, **_endpoint(alone, alone.target.path, mark=mark, guarded=guarded)}
        return
    back = f"{prefix.rstrip('/')}~/"
    yield {**met, "filters": [_rewritten(path=back)], **_shared_out(service, first, relay_port)}
    yield {"matches": [{"path": {"type": "PathPrefix", "value": back}}], **_shared_out(service, first, relay_port)}
    for group in others:
        yield {**_named(back, _name(group)), **_shared_out(service, group, relay_port)}
    for share in (member for group in groups for member in group.members if isinstance(member, WeightedEndpoint)):
        path = share.target.path
        wanted = prefix if path is None else path
        yield {**_named(back, _name(share)), **_endpoint(share, wanted, mark=mark, guarded=guarded)}


def _name(member: WeightedEndpoint | BackendGroup) -> str:
    return f"~{member.number}" if isinstance(member, BackendGroup) else member.endpoint.key.name


def _named(path: str, name: str) -> Manifest:
    header = {"type": "Exact", "name": HEADER, "value": name}
    return {"matches": [{"path": {"type": "PathPrefix", "value": path}, "headers": [header]}]}


def _shared_out(service: Key, group: BackendGroup, port: int) -> Manifest:
    weights = fitted([member.weight for member in group.members])
    relay = names.service_relay(*service)
    return {
        "backendRefs": [
            {
                **_reference(relay, port, weight),
                "filters": [_headers(set=[{"name": HEADER, "value": _name(member)}])],
            }
            for member, weight in zip(group.members, weights, strict=True)
        ],
        "timeouts": {"request": "0s"},  # none: answers may stream for as long as they like
    }


def _endpoint(share: WeightedEndpoint, path: str | None, *, mark: str, guarded: bool) -> Manifest:
    target = share.target
    rewritten = [_rewritten(path=path, name=target.name)] if path is not None or target.name else []
    reference = _reference(names.endpoint_backend(*share.endpoint.key), target.backend.port, 1)
    return {
        "filters": [*rewritten, *_credentials(share, mark=mark, guarded=guarded)],
        "backendRefs": [reference],
        "timeouts": {"request": "0s"},
    }


def _credentials(share: WeightedEndpoint, *, mark: str, guarded: bool) -> Iterator[Manifest]:
    """The endpoint's own credentials, and never the client's beside them; from a Secret where one holds them whole."""
    header, added = share.target.header, [marked(mark)] if mark and share.target.unproven else []
    removed = [HEADER, *withheld(header.name if header else None, guarded=guarded)]
    if header is not None and header.secret is None:
        # Envoy reads `%...%` in a value as an expression, and refuses everybody's routes for one that it cannot read.
        added = [{"name": header.name, "value": header.value.replace("%", "%%")}, *added]
    yield _headers(set=added, remove=removed)
    if header is None or header.secret is None:
        return
    injection = {"group": "gateway.envoyproxy.io", "kind": "HTTPRouteFilter"}
    name = names.endpoint_backend(*share.endpoint.key)
    yield {"type": "ExtensionRef", "extensionRef": {**injection, "name": name}}


def _headers(**changes: list[Manifest] | list[str]) -> Manifest:
    kept = {change: those for change, those in changes.items() if those}
    return {"type": "RequestHeaderModifier", "requestHeaderModifier": kept}


def _rewritten(*, path: str | None = None, name: str | None = None) -> Manifest:
    replaced = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}} if path is not None else {}
    return {"type": "URLRewrite", "urlRewrite": {**({"hostname": name} if name else {}), **replaced}}


def _reference(name: str, port: int, weight: int) -> Manifest:
    return {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": name, "port": port, "weight": weight}
