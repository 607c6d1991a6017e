"""What a ModelCache is on a workload cluster: a volume, and for as long as the weights come, the Job that fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.models.cache.cache_sources import arguments, content_of, credentials, fetched_by
from modelplane_operator.owned import on_cluster, owner_labels

VOLUME: Final = "/mnt/artifact"
USER: Final = 65532
REFUSED: Final = 3  # exit code of the hydrator: another pod would end in the same way
TRIES: Final = 6  # pods of one Job, with pauses up to six minutes between them
# It streams: 132 MB at most for 600 MB of files. What it has written counts too until it is on the disk.
RESOURCES: Final = {"requests": {"cpu": "500m", "memory": "300Mi"}, "limits": {"memory": "1Gi"}}


@dataclass(frozen=True, slots=True)
class Hydrator:
    """What fills volumes, and from where."""

    image: str = ""
    """The operator's own, under the name by which clusters pull it. Empty: nobody has said."""
    endpoint: str = "https://huggingface.co"
    """Where Hugging Face, or a mirror of it, answers."""


def render_volume(cache: ModelCache, name: str, storage_class: str, gib: int, staged: str = "") -> Manifest:
    """The volume of the present content; `staged`: the revision that it holds all of."""
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
    """The token, or what else the source asks for, as long as the Job is there: encoded, by variable."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(cache),
        "type": "Opaque",
        "data": dict(secret),
    }


def render_account(cache: ModelCache) -> tuple[Manifest, ...]:
    """Who the Job's pod is: somebody who may say on that Job how far it is, and nothing else.

    By its status, which has annotations too: whoever may patch the Job itself may have it run any number of pods.
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
    """The Job that fills a volume. `verified`: what the list of its files hashes to that were verified there before."""
    source, metadata = fetched_by(cache), _metadata(cache)
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
                    {  # an eviction is nobody's failure
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
                    **_ELSEWHERE,
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
                            "env": [{"name": "HOME", "value": "/tmp"}, *_token(cache)],  # noqa: S108
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


# On nodes of accelerators too, where there are no others: some clusters have none.
_ELSEWHERE: Final[Manifest] = {
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


def _metadata(cache: ModelCache) -> Manifest:
    return on_cluster(cache, names.hydration(*cache.key, content_of(cache)))


def _token(cache: ModelCache) -> list[Manifest]:
    asked, name = credentials(fetched_by(cache)), _metadata(cache)["name"]
    if asked is None:
        return []
    return [
        {
            "name": one,
            "valueFrom": {
                "secretKeyRef": {"name": name, "key": one, **({"optional": True} if one in asked.optional else {})}
            },
        }
        for one in (*asked.variables, *asked.optional)
    ]
