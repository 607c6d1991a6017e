"""How Envoys treat connections, those of clients and those to backends, for a whole Gateway of Envoy Gateway's.

Its defaults are for web pages: models take minutes to answer, and a thousand requests at once are few.
"""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Manifest

_VERSION: Final = "gateway.envoyproxy.io/v1alpha1"
# Load balancers and firewalls forget what is silent, after 240 s (Azure) or 350 s (AWS) and without a word.
_KEPT_ALIVE: Final[Manifest] = {"idleTime": "60s", "interval": "15s", "probes": 4}
_AT_ONCE: Final = 100_000  # of anything, to one backend; by default 1,024, and the rest is answered 503
_NEVER: Final = 2**31 - 1  # consecutive errors


def client_policy(metadata: Manifest, target: Manifest, **more: Manifest) -> Manifest:
    """How clients of a Gateway, or of the listener that the target names, are treated.

    Whoever is idle goes soon: a listener that is replaced, and a pod that ends, wait for connections (`DRAIN`).
    A slash that is escaped is one, as in names of models; by default clients would be led to a path of the cluster's.
    """
    headers = {"withUnderscoresAction": "DropHeader", **more.pop("headers", {})}
    return {
        "apiVersion": _VERSION,
        "kind": "ClientTrafficPolicy",
        "metadata": metadata,
        "spec": {
            "targetRefs": [target],
            "timeout": {"http": {"idleTimeout": "120s"}},
            "tcpKeepalive": _KEPT_ALIVE,
            "headers": headers,
            "path": {"escapedSlashesAction": "UnescapeAndForward"},
            **more,
        },
    }


_NUMBERS = ("maxConnections", "maxParallelRequests", "maxPendingRequests")
_UNREAD: Final = ["connect-failure", "refused-stream", "reset-before-request"]  # nobody has seen such a request
# How an endpoint picker is asked: once for each request that is under way. No pings of HTTP/2, for which a server of
# gRPC in Go ends the connection, and what is on it, after the third.
ASKED: Final[Manifest] = {
    "circuitBreaker": dict.fromkeys(_NUMBERS, _AT_ONCE),
    "retry": {"numRetries": 1, "retryOn": {"triggers": _UNREAD}},
    "tcpKeepalive": {"idleTime": "5s", "interval": "2s", "probes": 3},
    "timeout": {"tcp": {"connectTimeout": "1s"}},
}


def backend_policy(metadata: Manifest, target: Manifest, *, idle: str, chosen_by: str = "") -> Manifest:
    """How backends of a Gateway are treated. `idle`: how long a connection waits for another request.

    That has to be shorter than the backends' own time: else a request meets a connection that is just being closed.
    `chosen_by`: a header that names the pod which a request goes to first, if it is one of the backend's.
    """
    balancer = {"type": "LeastRequest", "endpointOverride": {"extractFrom": [{"header": chosen_by}]}}
    return {
        "apiVersion": _VERSION,
        "kind": "BackendTrafficPolicy",
        "metadata": metadata,
        "spec": {
            "targetRefs": [target],
            **({"loadBalancer": balancer} if chosen_by else {}),
            "circuitBreaker": dict.fromkeys(_NUMBERS, _AT_ONCE),
            # What no engine has seen. `reset` would be too much: whoever has begun to answer may have died of it, and
            # the next one would, too.
            "retry": {
                "numRetries": 2,
                "retryOn": {"triggers": _UNREAD},
            },
            # A pod that takes no connections is left out for a while. How many errors it answers in a row does not
            # count: they may be a client's doing, a full queue's 503 among them, and Envoy would leave out the last
            # pod that is ready, too, where others end or start.
            "healthCheck": {
                "passive": {
                    "splitExternalLocalOriginErrors": True,
                    "consecutiveLocalOriginFailures": 3,
                    "consecutive5XxErrors": _NEVER,
                    "baseEjectionTime": "10s",
                    "maxEjectionPercent": 50,
                }
            },
            "tcpKeepalive": _KEPT_ALIVE,
            # What a picker names is tried first, however often it has failed.
            "timeout": {
                "tcp": {"connectTimeout": "1s" if chosen_by else "5s"},
                "http": {"connectionIdleTimeout": idle},
            },
        },
    }
