"""The API routes that a service carries to its engines, and the reason if it does not carry one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, key_of, section
from kubeloop.words import count_of
from modelplane_operator.api.model_replica import PickerReady
from modelplane_operator.api.model_service import APIRoute

# Paths that every endpoint picker parses; one without further parsers answers others with 400.
PARSED: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"),
    "/inference/v1/generate",
)
WEBSOCKET: Final = "/v1/realtime"
ROUTES: Final = (
    *(*PARSED, "/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/rerank", "/v1/score"),
    *("/v2/models", "/pooling", "/classify", "/tokenize", "/detokenize", "/generate", "/completion", WEBSOCKET),
)
_MAX_ROUTES: Final = 47  # the status holds 48, the last of which is for all other paths
_MESSAGE: Final = 512


def api_routes(replicas: Sequence[Manifest], others: int) -> tuple[APIRoute, ...]:
    """Return the routes of a service, given the replicas behind it and the number of its other endpoints."""
    added = sorted({path for replica in replicas for path in _list_own_paths(replica)})
    routes = [_build_route(path, replicas, others) for path in dict.fromkeys((*ROUTES, *added))]
    routes = routes[:_MAX_ROUTES]
    open_clusters = {_get_cluster(replica) for replica in replicas if section(replica, "status").get("paths") == "All"}
    if open_clusters:
        message = (
            f"clients can use every path of the engines on {count_of(len(open_clusters), 'cluster')}, such as"
            f" {min(open_clusters)}: apply the access manifest there again to open only the model APIs"
        )
        routes.append(APIRoute(path="/", carried=True, message=message[:_MESSAGE]))
    return tuple(routes)


def decisive(replica: Manifest) -> tuple[object, ...]:
    """Return the fields of a replica that decide which routes it carries."""
    is_older = _get_revision(replica) < 3
    return (
        is_older,
        _list_own_paths(replica),
        is_older and _has_working_picker(replica),
        section(replica, "status").get("paths"),
    )


def _build_route(path: str, replicas: Sequence[Manifest], others: int) -> APIRoute:
    """Return the entry of one path, with the first replica that does not carry it."""
    reasons = {key_of(replica).name: reason for replica in replicas if (reason := _find_obstacle(path, replica))}
    total = len(replicas) + others
    if not reasons:
        return APIRoute(path=path, carried=total > 0)
    name, reason = min(reasons.items())
    count = "" if len(reasons) == total else f"not by {len(reasons)} of {count_of(total, 'endpoint')}: "
    return APIRoute(path=path, carried=len(reasons) < total, message=f"{count}{name} {reason}"[:_MESSAGE])


def _find_obstacle(path: str, replica: Manifest) -> str:
    """Return why requests to a path do not reach the engines of a replica; empty if they do."""
    if _has_working_picker(replica) and _get_revision(replica) < 3 and path not in (*PARSED, WEBSOCKET):
        return "has an older endpoint picker, which answers 400; the next change of its deployment replaces it"
    own_paths = _list_own_paths(replica)
    if path in ROUTES or "/" in own_paths or path in own_paths or section(replica, "status").get("paths") == "All":
        return ""
    return f"is on cluster {_get_cluster(replica)}, which does not allow it (isolation.pods.allowedPaths)"


def _list_own_paths(replica: Manifest) -> tuple[str, ...]:
    """Return the paths that the replica's spec declares."""
    return tuple(section(replica, "spec", "serving").get("paths") or ())


def _has_working_picker(replica: Manifest) -> bool:
    """True if an endpoint picker selects the pods of the replica."""
    return condition(replica, PickerReady.__name__).reason == PickerReady.PICKING.reason


def _get_revision(replica: Manifest) -> int:
    """Return the revision of pods that the replica runs, which tells its picker's age."""
    return section(replica, "spec").get("podRevision") or 0


def _get_cluster(replica: Manifest) -> str:
    return section(replica, "spec").get("clusterName") or ""
