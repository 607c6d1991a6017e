"""Whom the platform team lets have LLMInferences on a cluster of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from kubeloop.model import ATOMIC, Model, Rule, must
from modelplane_operator.api.bounds import HOST_OR_WILDCARD, NamespaceName

RESERVED = ("kube-", "modelplane-")

OPEN_NAMESPACE = Rule(
    "!self.startsWith('kube-') && !self.startsWith('modelplane-')",
    "The namespaces of Kubernetes and of the operator are not for models: name one that you have made for them.",
)


class LLMInferenceGrant(Model):
    """What the LLMInferences of one namespace of the hub may use."""

    namespace: NamespaceName
    """Namespace of the hub."""
    target_namespaces: Annotated[
        tuple[Annotated[NamespaceName, must(OPEN_NAMESPACE)], ...], Field(min_length=1, max_length=16), ATOMIC
    ]
    """Namespaces on this cluster that they may deploy to. Create these, with quotas and policies."""
    ingress_hosts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=HOST_OR_WILDCARD)], ...],
        Field(max_length=32),
        ATOMIC,
    ] = ()
    """Hosts that their Ingresses may use, for example `qwen.example.com`, or `*.team-a.example.com` for all names
    below. Without it, none."""


def is_reserved(namespace: str) -> bool:
    """Whether a namespace is Kubernetes' or the operator's own, whoever has let somebody into it."""
    return namespace.startswith(RESERVED)


def is_among(host: str, hosts: Iterable[str]) -> bool:
    """Whether one of these is the host, or a wildcard for it."""
    return any(one in ("*", host) or (one.startswith("*.") and host.endswith(one[1:])) for one in hosts)
