"""Volumes for claims, in any access mode: bound by the real controller, and holding nothing, as no pod writes."""

from __future__ import annotations

import asyncio

from localfleet.cloud.work import Queue
from localfleet.kubeclient import APPLY, ApiError, Key, KubeClient, Manifest, Mirror, key_of

PROVISIONER = "localfleet.dev/volumes"
DRIVER = "volumes.localfleet.dev"
NOT_FOUND = 404
SELECTED_NODE = "volume.kubernetes.io/selected-node"  # the scheduler's word that a pod wants the volume now


class Volumes:
    """The provisioner of our StorageClasses."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._queue: Queue[tuple[str, Key]] = Queue()
        self._claims = self._mirror("claims", "/api/v1/persistentvolumeclaims")
        self._volumes = self._mirror("volumes", "/api/v1/persistentvolumes")
        self._classes = self._mirror("classes", "/apis/storage.k8s.io/v1/storageclasses")

    def _mirror(self, kind: str, path: str) -> Mirror:
        return Mirror(self._client, path, changed=lambda key: self._queue.add((kind, key)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for mirror in (self._claims, self._volumes, self._classes):
                group.create_task(mirror.run())
            group.create_task(self._queue.work(self._look))

    async def _look(self, what: tuple[str, Key]) -> None:
        kind, key = what
        match kind:
            case "claims" if claim := self._claims.objects.get(key):
                await self._provide(claim)
            case "volumes" if volume := self._volumes.objects.get(key):
                await self._reclaim(volume)
            case "classes":  # a claim may have been there before its class
                for claim in list(self._claims.objects.values()):
                    await self._provide(claim)
            case _:
                pass

    async def _provide(self, claim: Manifest) -> None:
        spec, metadata = claim["spec"], claim["metadata"]
        storage_class = self._classes.objects.get(("", spec.get("storageClassName") or ""))
        if storage_class is None or storage_class["provisioner"] != PROVISIONER:
            return
        waits = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        if spec.get("volumeName") or (waits and SELECTED_NODE not in metadata.get("annotations", {})):
            return
        namespace, name = key_of(claim)
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": f"pvc-{metadata['uid']}",
                "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
            },
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "volumeMode": spec.get("volumeMode", "Filesystem"),
                "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
                "storageClassName": storage_class["metadata"]["name"],
                "csi": {"driver": DRIVER, "volumeHandle": metadata["uid"]},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": namespace,
                    "name": name,
                    "uid": metadata["uid"],
                },
            },
        }
        path = f"/api/v1/persistentvolumes/pvc-{metadata['uid']}"
        params = {"fieldManager": "localfleet", "force": "true"}
        await self._client.request("PATCH", path, volume, content_type=APPLY, params=params)

    async def _reclaim(self, volume: Manifest) -> None:
        ours = volume["metadata"].get("annotations", {}).get("pv.kubernetes.io/provisioned-by") == PROVISIONER
        deleting = volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        if ours and deleting and volume.get("status", {}).get("phase") == "Released":
            try:
                await self._client.request("DELETE", f"/api/v1/persistentvolumes/{volume['metadata']['name']}")
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
