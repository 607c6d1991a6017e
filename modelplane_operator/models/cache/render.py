"""Render the objects of a ModelCache on a workload cluster: a volume and, during hydration, the Job that fills it.

The Job runs the hydrator (`modelplane_operator/hydrate`) with the arguments of `cache_sources`. Its pod gets no
permissions but to report its progress, and credentials only as long as the Job exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubeloop.objects import Manifest
from kubeloop.ownership import owner_labels
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.models.cache.cache_sources import arguments, content_of, credentials, remote_source
from modelplane_operator.owned import on_cluster

VOLUME: Final = "/mnt/artifact"
"""Path where the hydrator mounts the volume."""
USER: Final = 65532
"""User and group of the hydrator."""
REFUSED: Final = 3  # another pod would fail in the same way
"""Exit code of the hydrator for errors that a retry cannot resolve."""
TRIES: Final = 6  # the Job controller waits up to six minutes between them
"""Number of retries within one Job."""
# It streams: at most 132 MB for 600 MB of files. Written data counts, too, until it is flushed to disk.
RESOURCES: Final = {"requests": {"cpu": "500m", "memory": "300Mi"}, "limits": {"memory": "1Gi"}}
"""Resources of the hydrator's container."""


@dataclass(frozen=True, slots=True)
class Hydrator:
    """Settings of the program that fills volumes."""

    image: str = ""
    """The operator's own image, by the name that clusters pull it by; "" if it is not configured."""
    endpoint: str = "https://huggingface.co"
    """URL of Hugging Face or of a mirror."""


def render_volume(cache: ModelCache, name: str, storage_class: str, gib: int, staged: str = "") -> Manifest:
    """Render the claim for the current content. `staged` is the revision that it holds completely."""
    metadata = on_cluster(cache, name)
    annotations = {labels.CONTENT: content_of(cache), **({labels.STAGED: staged} if staged else {})}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**metadata, "annotations": annotations},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": f"{gib}Gi"}},
        },
    }


def render_token(cache: ModelCache, secret: Mapping[str, str]) -> Manifest:
    """Render the Secret with the source's credentials, base64-encoded by variable. It exists as long as the Job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(cache),
        "type": "Opaque",
        "data": dict(secret),
    }


def render_account(cache: ModelCache) -> tuple[Manifest, ...]:
    """Render the account of the Job's pod. It may only report progress on that Job.

    It may patch the Job's status, which includes annotations. Permission to patch the Job itself would allow it to
    start any number of pods.
    """
    metadata = _metadata(cache)
    name, namespace = metadata["name"], metadata["namespace"]
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["batch"], "resources": ["jobs/status"], "resourceNames": [name], "verbs": ["patch"]}
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )


def render_job(cache: ModelCache, volume: str, hydrator: Hydrator, *, attempt: int, verified: str = "") -> Manifest:
    """Render the Job that fills a volume. `verified` is the hash over the files that were verified there before."""
    source, metadata = remote_source(cache), _metadata(cache)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "annotations": {labels.ATTEMPT: str(attempt)}},
        "spec": {
            "backoffLimit": TRIES,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": "hydrator", "operator": "In", "values": [REFUSED]},
                    },
                    {  # an eviction does not count as a failure
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                ]
            },
            "template": {
                "metadata": {"labels": owner_labels(cache)},
                "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": metadata["name"],
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": USER,
                        "runAsGroup": USER,
                        "fsGroup": USER,
                        "fsGroupChangePolicy": "OnRootMismatch",
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    **_AVOID_POOLS,
                    "volumes": [
                        {"name": "artifact", "persistentVolumeClaim": {"claimName": volume}},
                        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                    ],
                    "containers": [
                        {
                            "name": "hydrator",
                            "image": hydrator.image,
                            "command": ["/opt/modelplane/bin/python", "-m", "modelplane_operator.hydrate"],
                            "args": [
                                f"--volume={VOLUME}",
                                f"--content={content_of(cache)}",
                                *arguments(source, hydrator.endpoint),
                                *([f"--verified={verified}"] if verified else []),
                                f"--job={metadata['name']}",
                                f"--namespace={metadata['namespace']}",
                            ],
                            "env": [{"name": "HOME", "value": "/tmp"}, *_render_credentials(cache)],  # noqa: S108
                            "resources": RESOURCES,
                            "volumeMounts": [
                                {"name": "artifact", "mountPath": VOLUME},
                                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
                            ],
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                },
            },
        },
    }


# Accelerator nodes are allowed, because some clusters have no others.
_AVOID_POOLS: Final[Manifest] = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {"matchExpressions": [{"key": labels.POOL, "operator": "DoesNotExist"}]},
                }
            ]
        }
    },
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
"""Affinity and toleration that prefer nodes outside the node pools."""


def _metadata(cache: ModelCache) -> Manifest:
    """Render the metadata of the hydration's objects."""
    return on_cluster(cache, names.hydration(*cache.key, content_of(cache)))


def _render_credentials(cache: ModelCache) -> list[Manifest]:
    """Render the variables with the source's credentials."""
    required, name = credentials(remote_source(cache)), _metadata(cache)["name"]
    if required is None:
        return []
    return [
        {
            "name": variable,
            "valueFrom": {
                "secretKeyRef": {
                    "name": name,
                    "key": variable,
                    **({"optional": True} if variable in required.optional else {}),
                }
            },
        }
        for variable in (*required.variables, *required.optional)
    ]
