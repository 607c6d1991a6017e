"""Render Envoy Gateway's policies for connections, of clients and to backends, for a whole Gateway.

Envoy's defaults are for websites, while models take minutes to respond and get thousands of requests at a time.
"""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Manifest

_VERSION: Final = "gateway.envoyproxy.io/v1alpha1"
# Load balancers and firewalls drop idle connections without notice, after 240 s (Azure) or 350 s (AWS).
_KEEPALIVE: Final[Manifest] = {"idleTime": "60s", "interval": "15s", "probes": 4}
_MAX_CONCURRENT: Final = 100_000  # the limit for one backend; beyond Envoy's default of 1,024, requests get 503
_NEVER: Final = 2**31 - 1  # consecutive errors


def client_policy(metadata: Manifest, target: Manifest, **more: Manifest) -> Manifest:
    """Return the policy for clients of a Gateway, or of the listener that the target names.

    Idle connections are closed soon, as replaced listeners and terminating pods wait for connections (`DRAIN`). An
    escaped slash is unescaped, as in names of models; by default, Envoy redirects clients to a path that only the
    cluster knows.
    """
    headers = {"withUnderscoresAction": "DropHeader", **more.pop("headers", {})}
    return {
        "apiVersion": _VERSION,
        "kind": "ClientTrafficPolicy",
        "metadata": metadata,
        "spec": {
            "targetRefs": [target],
            "timeout": {"http": {"idleTimeout": "120s"}},
            "tcpKeepalive": _KEEPALIVE,
            "headers": headers,
            "path": {"escapedSlashesAction": "UnescapeAndForward"},
            **more,
        },
    }


_NUMBERS = ("maxConnections", "maxParallelRequests", "maxPendingRequests")
# failures before the backend has read the request
_RETRIABLE: Final = ["connect-failure", "refused-stream", "reset-before-request"]
# Connections to an endpoint picker, with one request for each inference request. There are no HTTP/2 pings: a Go gRPC
# server closes the connection, with its requests, after the third.
PICKER_TRAFFIC: Final[Manifest] = {
    "circuitBreaker": dict.fromkeys(_NUMBERS, _MAX_CONCURRENT),
    "retry": {"numRetries": 1, "retryOn": {"triggers": _RETRIABLE}},
    "tcpKeepalive": {"idleTime": "5s", "interval": "2s", "probes": 3},
    "timeout": {"tcp": {"connectTimeout": "1s"}},
}


def backend_policy(metadata: Manifest, target: Manifest, *, idle: str, chosen_by: str = "") -> Manifest:
    """Return the policy for backends of a Gateway.

    `idle`: how long an idle connection is kept. It must be shorter than the backends' own time, or requests meet
    connections that are being closed. `chosen_by`: the header with the pod to try first, if it is one of the backend's.
    """
    balancer = {"type": "LeastRequest", "endpointOverride": {"extractFrom": [{"header": chosen_by}]}}
    return {
        "apiVersion": _VERSION,
        "kind": "BackendTrafficPolicy",
        "metadata": metadata,
        "spec": {
            "targetRefs": [target],
            **({"loadBalancer": balancer} if chosen_by else {}),
            "circuitBreaker": dict.fromkeys(_NUMBERS, _MAX_CONCURRENT),
            # Only requests that no engine has read are retried. `reset` would include those that may have crashed an
            # engine, and would then crash the next one.
            "retry": {
                "numRetries": 2,
                "retryOn": {"triggers": _RETRIABLE},
            },
            # A pod that accepts no connections is ejected for a while. Error responses do not count: a client may cause
            # them, as with the 503 of a full queue, and Envoy would eject even the last ready pod while others start or
            # stop.
            "healthCheck": {
                "passive": {
                    "splitExternalLocalOriginErrors": True,
                    "consecutiveLocalOriginFailures": 3,
                    "consecutive5XxErrors": _NEVER,
                    "baseEjectionTime": "10s",
                    "maxEjectionPercent": 50,
                }
            },
            "tcpKeepalive": _KEEPALIVE,
            # The pod that a picker chooses is tried first, however often it has failed.
            "timeout": {
                "tcp": {"connectTimeout": "1s" if chosen_by else "5s"},
                "http": {"connectionIdleTimeout": idle},
            },
        },
    }
