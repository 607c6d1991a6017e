"""How requests reach a replica on its cluster: a route at the cluster's gateway, and what it leads to."""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Key, Manifest
from kubeloop.types import HTTP_ROUTE_FILTER
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.render.allowed import open_paths
from modelplane_operator.models.replica.render.endpoint_picker import PICKED_RULE
from modelplane_operator.models.replica.render.part import ports
from modelplane_operator.models.replica.render.pods import PORT_NAME
from modelplane_operator.owned import on_cluster
from modelplane_operator.routing.service.hops import NO_REQUEST

BODILESS: Final = ("GET", "HEAD", "OPTIONS", "DELETE")


def replica_prefix(replica: Key) -> str:
    """The path under which a cluster's gateway knows a replica."""
    return f"/{replica.namespace}/{replica.name}/"


def render_service(replica: ModelReplica) -> Manifest:
    """The pods that answer requests, as the gateway finds them without a picker."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": on_cluster(replica, replica.metadata.name),
        "spec": {
            # Nothing that comes past a picker is for an engine that only reads prompts.
            "selector": {
                labels.SERVING: replica.metadata.name,
                **({labels.PICKER_ROLE: "decode"} if replica.spec.is_split else {}),
            },
            "ports": [
                {
                    "name": f"{PORT_NAME}-{rank}" if rank else PORT_NAME,
                    "port": port,
                    "targetPort": port,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
                for rank, port in enumerate(ports(replica))
            ],
        },
    }


def render_path_filter(replica: ModelReplica) -> Manifest:
    """Return what takes the replica's own prefix off a path: a URLRewrite can only where the match is a prefix."""
    rewrite = {"pattern": f"^{_pattern(replica)}/(.*)$", "substitution": r"/\1"}
    return {
        "apiVersion": HTTP_ROUTE_FILTER.api_version,
        "kind": HTTP_ROUTE_FILTER.kind,
        "metadata": on_cluster(replica, replica.metadata.name),
        "spec": {"urlRewrite": {"path": {"type": "ReplaceRegexMatch", "replaceRegexMatch": rewrite}}},
    }


def render_route(replica: ModelReplica, *, has_picker: bool, picked: bool, filtered: bool) -> Manifest:
    """Return the HTTPRoute of a replica.

    `has_picker`: the replica has an endpoint picker. `picked`: it reads requests with a body; the rest, websockets
    among them, pass it by, as it would wait for a body. `filtered`: only paths of model APIs lead anywhere. It takes a
    kind of Envoy Gateway that an account of before may not write.

    The rule of what is picked stays while no picker answers, and asks for what no request has: without it, the
    gateway's listener would change, and close connections.
    """
    name = replica.metadata.name
    service: list[Manifest] = [{"group": "", "kind": "Service", "name": name, "port": port} for port in ports(replica)]
    if filtered:
        reference = {"group": HTTP_ROUTE_FILTER.group, "kind": HTTP_ROUTE_FILTER.kind, "name": name}
        rewrite: Manifest = {"type": "ExtensionRef", "extensionRef": reference}
        match: Manifest = {"path": {"type": "RegularExpression", "value": allowed_paths(replica)}}
    else:
        path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
        rewrite = {"type": "URLRewrite", "urlRewrite": {"path": path}}
        match = {"path": {"type": "PathPrefix", "value": replica_prefix(replica.key)}}
    # A body that comes by another method than POST would go round the picker, to the engines that read prompts, too.
    matches = [{**match, "method": method} for method in BODILESS] if picked else [match]
    others = [matches] if filtered else [[each] for each in matches]  # a prefix is replaced where it is the only match
    never = {} if picked else {"headers": [{"type": "Exact", "name": NO_REQUEST, "value": "1"}]}
    with_body = _rule([{**match, "method": "POST", **never}], rewrite, service)
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": on_cluster(replica, name),
        "spec": {
            "parentRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "name": names.CLUSTER_GATEWAY,
                    "namespace": names.SYSTEM_NAMESPACE,
                }
            ],
            "rules": [
                *([{"name": PICKED_RULE, **with_body}] if has_picker else []),
                *(_rule(each, rewrite, service) for each in others),
            ],
        },
    }


def allowed_paths(replica: ModelReplica) -> str:
    """Return the expression that matches the paths of model APIs, and those that the deployment adds."""
    return f"{_pattern(replica)}/{open_paths(replica.spec.serving.paths if replica.spec.serving else ())}"


def _pattern(replica: ModelReplica) -> str:
    """Return the replica's prefix as an expression; of what names may have, only dots mean anything there."""
    return replica_prefix(replica.key).rstrip("/").replace(".", r"\.")


def _rule(matches: list[Manifest], rewrite: Manifest, backends: list[Manifest]) -> Manifest:
    return {
        "matches": matches,
        "filters": [rewrite],
        "backendRefs": backends,
        "timeouts": {"request": "0s"},  # none: Envoy's 15 s would cut off long answers
    }
