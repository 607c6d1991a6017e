"""What a kubelet says of its pods when it is heard again.

The node controller takes `Ready` from the pods of a node that has fallen silent, and leaves it to the node's kubelet to
give it back. kwok does not: its pods would be unready for ever after whatever stopped it, or its API server, for a
minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from localfleet.cloud.work import Queue
from localfleet.engine.settings import NODE_DOWN
from localfleet.kubeclient import STRATEGIC_MERGE, ApiError, Key, KubeClient, Manifest, Mirror, entries, section

GONE = (404, 409)


class Readiness:
    """Every pod of one cluster whose node answers, but for engines: their simulator says it itself."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._queue: Queue[Key] = Queue()
        self._pods = Mirror(client, "/api/v1/pods", changed=self._queue.add)
        self._nodes = Mirror(client, "/api/v1/nodes", changed=self._node_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._pods.run())
            group.create_task(self._queue.work(self._look))

    def _node_changed(self, key: Key) -> None:
        for pod, manifest in self._pods.objects.items():
            if manifest["spec"].get("nodeName") == key[1]:
                self._queue.add(pod)

    async def _look(self, key: Key) -> None:
        pod = self._pods.objects.get(key)
        if pod is None or not is_forgotten(pod, self._nodes.objects):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": None, "message": None, "lastTransitionTime": now}
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [ready]}}
        path = f"/api/v1/namespaces/{key[0]}/pods/{key[1]}/status"
        try:
            await self._client.request("PATCH", path, body, content_type=STRATEGIC_MERGE)
        except ApiError as error:
            if error.status not in GONE:
                raise


def is_forgotten(pod: Manifest, nodes: Mapping[Key, Manifest]) -> bool:
    """Whether all of a pod's containers are ready, its node answers, and yet it is called unready."""
    node = nodes.get(("", section(pod, "spec").get("nodeName", "")))
    silent = node is None or section(node, "metadata", "annotations").get(NODE_DOWN) == "true"
    return (
        not silent
        and _says(node or {}, "Ready") == "True"
        and "deletionTimestamp" not in pod["metadata"]
        and section(pod, "status").get("phase") == "Running"
        and all(container["name"] != "engine" for container in entries(pod, "spec", "containers"))
        and _says(pod, "Ready") == "False"
        and _says(pod, "ContainersReady") == "True"
        and all(_says(pod, gate["conditionType"]) == "True" for gate in entries(pod, "spec", "readinessGates"))
    )


def _says(manifest: Manifest, kind: str) -> str:
    found = (one["status"] for one in entries(manifest, "status", "conditions") if one["type"] == kind)
    return next(found, "Unknown")
