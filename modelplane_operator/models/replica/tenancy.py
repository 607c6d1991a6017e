"""The namespace of a tenant on a workload cluster: whether it can go, and what others have in it.

Deleting a namespace deletes whatever anybody has in it. So it goes with the last replica only when nothing is there
but our own objects and those that every namespace has.
"""

from __future__ import annotations

from kubeloop.client.kube import Kube
from kubeloop.errors import Forbidden, NotFound
from kubeloop.objects import Manifest, annotations_of, is_terminating, key_of, labels_of
from kubeloop.types import (
    CONFIG_MAP,
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    HTTP_ROUTE,
    JOB,
    LEADER_WORKER_SET,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_CLAIM_TEMPLATE,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    ResourceType,
)
from modelplane_operator.api import labels

LOOKED_FOR = (
    PERSISTENT_VOLUME_CLAIM,
    POD,
    DEPLOYMENT,
    STATEFUL_SET,
    DAEMON_SET,
    LEADER_WORKER_SET,
    CRON_JOB,
    JOB,
    SERVICE,
    SECRET,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    RESOURCE_CLAIM_TEMPLATE,
    HTTP_ROUTE,
)
"""What others may have there. What belongs to anything else, a custom resource for one, counts for its owner."""

_KINDS = frozenset(kind.kind for kind in LOOKED_FOR)

EVERYWHERE = {
    SERVICE_ACCOUNT: frozenset({"default", "builder", "deployer"}),
    CONFIG_MAP: frozenset({"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"}),
    ROLE_BINDING: frozenset({"system:deployers", "system:image-builders", "system:image-pullers"}),
}
"""What Kubernetes, OpenShift and Istio make in every namespace."""

_SOME = 50  # of a type: more than every namespace has
# The replica's own are gone by then. Another one's are there when it has the cluster under another name.
_NOT_OURS = f"{labels.OWNER_KIND} notin (Namespace)"
_ACCOUNT = "kubernetes.io/service-account.name"  # annotation: whose token a Secret holds


async def of_others(kube: Kube, namespace: str) -> tuple[str, ...]:
    """What others have in a namespace, one of each type: `kind name`.

    Asked for each time (no `Reads`): what is there is deleted by the answer.
    """
    found: list[str] = []
    for kind in LOOKED_FOR:
        try:
            seen = await kube.some(kind, _SOME, namespace=namespace, selector=_NOT_OURS)
        except NotFound:
            continue
        except Forbidden:  # there may be some
            found.append(f"{kind.kind}s, which the operator may not list")
            continue
        found += [f"{kind.kind} {key_of(one).name}" for one in seen.items if _matters(kind, one)][:1]
    return tuple(found)


def _matters(kind: ResourceType, one: Manifest) -> bool:
    """Whether somebody has put it there, and not a controller for something else that is looked at itself."""
    metadata, usual = one["metadata"], EVERYWHERE.get(SERVICE_ACCOUNT, frozenset())
    if is_terminating(one) or annotations_of(one).get(_ACCOUNT) in usual:
        return False
    if kind == POD:  # those of pickers end by themselves, and nobody waits for them
        return labels.PICKER not in labels_of(one)
    if any(owner.get("kind") in _KINDS for owner in metadata.get("ownerReferences") or ()):
        return False
    return metadata["name"] not in EVERYWHERE.get(kind, frozenset())
