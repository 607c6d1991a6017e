"""Decide whether a tenant's namespace on a workload cluster may be deleted, and list foreign objects in it.

Deleting a namespace deletes everything in it. So it goes with the last replica only if it has nothing but objects
of the operator and those that every namespace has.
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
"""Types that are searched for foreign objects. Other types, such as custom resources, count through what they own."""

_KINDS = frozenset(kind.kind for kind in LOOKED_FOR)
"""Kinds of these types."""

EVERYWHERE = {
    SERVICE_ACCOUNT: frozenset({"default", "builder", "deployer"}),
    CONFIG_MAP: frozenset({"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"}),
    ROLE_BINDING: frozenset({"system:deployers", "system:image-builders", "system:image-pullers"}),
}
"""Names of objects that Kubernetes, OpenShift and Istio create in every namespace."""

_LIST_LIMIT = 50  # more than every namespace has by default
"""Number of objects of a type that are listed."""
# The replica's own objects are deleted by then. Those of a replica that knows the cluster by another name count.
_FOREIGN = f"{labels.OWNER_KIND} notin (Namespace)"
"""Selector of objects that do not belong to a namespace of the hub."""
_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"  # annotation: the ServiceAccount of a token Secret
"""Annotation with the ServiceAccount of a token Secret."""


async def of_others(kube: Kube, namespace: str) -> tuple[str, ...]:
    """Return the foreign objects in a namespace, one of each type, as `kind name`.

    They are listed each time and not cached, because the answer decides a deletion.
    """
    object_names: list[str] = []
    for kind in LOOKED_FOR:
        try:
            page = await kube.some(kind, _LIST_LIMIT, namespace=namespace, selector=_FOREIGN)
        except NotFound:
            continue
        except Forbidden:  # it may have some
            object_names.append(f"{kind.kind}s, which the operator may not list")
            continue
        object_names += [f"{kind.kind} {key_of(item).name}" for item in page.items if _is_foreign(kind, item)][:1]
    return tuple(object_names)


def _is_foreign(kind: ResourceType, manifest: Manifest) -> bool:
    """True if a user created the object, and not a controller on behalf of an object that is checked itself."""
    metadata, default_accounts = manifest["metadata"], EVERYWHERE.get(SERVICE_ACCOUNT, frozenset())
    if is_terminating(manifest) or annotations_of(manifest).get(_ACCOUNT_ANNOTATION) in default_accounts:
        return False
    if kind == POD:  # pods of pickers end by themselves and delay nothing
        return labels.PICKER not in labels_of(manifest)
    if any(owner.get("kind") in _KINDS for owner in metadata.get("ownerReferences") or ()):
        return False
    return metadata["name"] not in EVERYWHERE.get(kind, frozenset())
