"""Whom the platform team lets have LLMInferences on a cluster of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from modelplane_operator.api.bounds import NamespaceName
from modelplane_operator.api.model import ATOMIC, Model, Rule, must

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
    """Namespaces on this cluster in which they may have a model; make them, with the quotas and policies that you
    want around it."""


def is_reserved(namespace: str) -> bool:
    """Whether a namespace is Kubernetes' or the operator's own, whoever has let somebody into it."""
    return namespace.startswith(RESERVED)
