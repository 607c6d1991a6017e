"""A cache is filled on its clusters, is started from when all of it is there, and goes when nobody starts from it.

Pods of Jobs end by themselves here. What one of them would do is done by the hydrator's process, as that very account.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.harness import Stage, condition, remote, until
from tests.integration.kinds import cache, cluster, deployment, secret, service
from tests.support.model_hub import COMMIT, model_hub

pytestmark = pytest.mark.fleet

TOKEN = "hf_canary-5b1d"  # noqa: S105 - of a stand-in
LATE = "late"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 5000}
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": LATE},
    "provisioner": "localfleet.dev/volumes",
}


def with_storage(name: str) -> dict[str, Any]:
    """A cluster of the stage, with a StorageClass for caches."""
    found = cluster(name)
    found["spec"]["cluster"]["existing"]["cache"] = {"storageClassName": LATE}
    return found


def gated(space: str, name: str = "model") -> dict[str, Any]:
    found = cache(space, name)
    found["spec"]["clusterSelector"] = {"matchLabels": {"site": "worker-1"}}
    found["spec"]["huggingFace"] |= {"authSecret": {"name": "token"}, "ignorePatterns": ["*.pth"]}
    return found


async def test_a_cache_is_filled_started_from_and_deleted(stage: Stage, space: str, tmp_path: Path) -> None:
    worker, home = stage.workers["worker-1"], remote(space)
    model = deployment(space)
    model["spec"]["template"]["spec"]["modelCacheRef"] = {"name": "model"}
    try:
        await stage.hub.apply(with_storage("worker-1"))
        await until("the cluster to offer storage", lambda: offers(stage))
        await stage.hub.apply(gated(space), model, service(space))
        await stage.hub.says("ArtifactReady=False/AuthSecretMissing", "ModelCache", "model", space)
        assert await worker.list("Job", home) == []

        await stage.hub.apply(secret(space, "token", HF_TOKEN=TOKEN))
        job = await until("a Job", lambda: first(stage, "Job", home))
        assert TOKEN not in json.dumps(job)
        await hydrates_as(stage, job, home, tmp_path)
        told = await until("what the hydrator says", lambda: progress(stage, space))
        assert (told["files"], told["totalFiles"], told["bytes"]) == (2, 2, 5002)

        await until("the replica to wait for its weights", lambda: held(stage, space))
        assert await worker.list("Deployment", home) == []

        await worker.apply(CLASS)
        await stage.hub.ready("ModelCache", "model", space)
        await stage.serving(space, 1)
        cached = (await stage.hub.get("ModelCache", "model", space) or {})["status"]
        (there,) = cached["clusters"]
        assert (cached["summary"]["ready"], there["phase"], there["revision"]) == ("1/1", "Ready", COMMIT)
        (pod,) = [
            one for one in await worker.list("Pod", home) if "engine" in str(one["spec"]["containers"][0]["name"])
        ]
        assert there["volume"] in json.dumps(pod["spec"]["volumes"])
        assert await worker.list("Job", home) == []
        assert TOKEN.encode() not in b"".join(base64.b64decode(one) for one in await secrets(stage, home))

        await meets_a_quota(stage, space, home)

        await stage.hub.delete("ModelCache", "model", space)
        await until("the cache to say who starts from it", lambda: blocked(stage, space, "start from the cache"))
        assert len(await worker.list("PersistentVolumeClaim", home)) == 1
        await stage.hub.delete("ModelDeployment", "model", space)
        await stage.hub.gone("ModelCache", "model", space)
        await worker.gone("Namespace", home)
    finally:
        for name in ("more", "model"):
            await stage.hub.delete("ModelCache", name, space)
        await stage.hub.apply(cluster("worker-1"))
        await worker.delete("StorageClass", LATE)
    for name in ("events", "log"):
        text = stage.operator.log.read_text() if name == "log" else json.dumps(await stage.hub.list("Event", space))
        assert TOKEN not in text


async def meets_a_quota(stage: Stage, space: str, home: str) -> None:
    """One that is used up is told of, and an edit has the cache tried again at once."""
    worker = stage.workers["worker-1"]
    await worker.apply(quota(home))
    await until("the quota to be counted", lambda: counted(stage, home))
    more = gated(space, "more")
    more["spec"]["huggingFace"]["revision"] = "next"
    await stage.hub.apply(more)
    told = await stage.hub.says("Synced=False", "ModelCache", "more", space)
    assert "exceeded quota: team" in told["message"], told
    (line,) = (await stage.hub.get("ModelCache", "more", space) or {})["status"]["clusters"]
    assert (line["phase"], line["refusals"]) == ("Pending", 1)
    assert "edit the cache" in line["message"]
    await worker.delete("ResourceQuota", "team", home)
    await stage.hub.patch("ModelCache", "more", space, spec={"huggingFace": {"sizeGiB": 2}})
    await stage.hub.ready("ModelCache", "more", space)
    await stage.hub.delete("ModelCache", "more", space)
    await stage.hub.gone("ModelCache", "more", space)


def quota(home: str) -> dict[str, Any]:
    """Of as many volumes as there are already."""
    metadata = {"name": "team", "namespace": home}
    spec = {"hard": {"persistentvolumeclaims": "1"}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}


async def counted(stage: Stage, home: str) -> bool:
    found = await stage.workers["worker-1"].get("ResourceQuota", "team", home) or {}
    return "used" in found.get("status", {})


async def first(stage: Stage, kind: str, home: str) -> dict[str, Any] | None:
    return next(iter(await stage.workers["worker-1"].list(kind, home)), None)


async def offers(stage: Stage) -> bool:
    return "cache" in (await stage.hub.get("InferenceCluster", "worker-1") or {}).get("status", {})


async def secrets(stage: Stage, home: str) -> list[str]:
    found = await stage.workers["worker-1"].list("Secret", home)
    return [value for one in found for value in (one.get("data") or {}).values()]


async def progress(stage: Stage, space: str) -> dict[str, Any] | None:
    status = (await stage.hub.get("ModelCache", "model", space) or {}).get("status", {})
    return next((one["progress"] for one in status.get("clusters", ()) if "progress" in one), None)


async def held(stage: Stage, space: str) -> bool:
    replicas = await stage.hub.list("ModelReplica", space)
    return [condition(one, "ModelAccepted").get("reason") for one in replicas] == ["ModelCacheHydrating"]


async def blocked(stage: Stage, space: str, why: str) -> bool:
    found = condition(await stage.hub.get("ModelCache", "model", space) or {}, "Ready")
    return found.get("reason") == "Deleting" and why in found.get("message", "")


async def hydrates_as(stage: Stage, job: dict[str, Any], home: str, folder: Path) -> None:
    """Do what the Job's pod would do, with its arguments, its environment and its permissions."""
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = yaml.safe_load(stage.fleet.kubeconfig("worker-1").read_text())
    there = config["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(base64.b64decode(there["certificate-authority-data"]))
    token = await asyncio.to_thread(
        stage.fleet.kubectl, "worker-1", "-n", home, "create", "token", pod["serviceAccountName"]
    )
    (folder / "token").write_text(token)
    (folder / "volume").mkdir()
    (variable,) = (one for one in container["env"] if one["name"] == "HF_TOKEN")
    copies = await stage.workers["worker-1"].list("Secret", home)
    (copy,) = (one for one in copies if one["metadata"]["name"] == variable["valueFrom"]["secretKeyRef"]["name"])
    with model_hub(FILES, token=TOKEN) as hub:
        mine = [
            f"--volume={folder / 'volume'}",
            f"--endpoint={hub.url}",
            f"--server={there['server']}",
            f"--account={folder}",
            f"--termination-message={folder / 'word'}",
        ]
        command = [sys.executable, *container["command"][1:], *container["args"], *mine]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "HF_TOKEN": base64.b64decode(copy["data"]["HF_TOKEN"]).decode(),
        }
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, "not told" in done.stdout) == (0, False), done.stdout + done.stderr
