"""The demo's cache: a hub with a made-up model, and what a node would do for the pod that fills the volume.

No pod of a Job runs on the local fleet, and volumes hold nothing. So the hydrator's process runs here, with the Job's
arguments and as the Job's account, beside the pod that stands for it: what it tells, the operator sees as ever.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from localfleet.fleet import Fleet
from localfleet.kubeclient import MERGE, STRATEGIC_MERGE, KubeClient, Manifest

REPO, COMMIT = "demo/made-up", "d" * 40
PIECES, PAUSE = 24, 0.2  # of a large file, and seconds between two of them: there is to be something to see
STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "shared"},
    "provisioner": "localfleet.dev/volumes",
}
OWN = "modelplane.ai/owner-kind=ModelCache"
POLL_INTERVAL = 0.2


async def filled(fleet: Fleet, worker: str, client: KubeClient, home: str, over: Callable[[], Any]) -> None:
    """Fill the volume that a cluster's Job asks for; `over` tells whether there is none to be filled any more."""
    pods, pod = f"/api/v1/namespaces/{home}/pods", dict[str, Any]()
    while not pod:
        if await over():
            return
        await asyncio.sleep(POLL_INTERVAL)
        found = await client.request("GET", pods, params={"labelSelector": OWN})
        alive = [one for one in found["items"] if _phase(one) in {"Pending", "Running"}]
        pod = next(iter(alive), pod)
    place = f"/api/v1/namespaces/{home}/pods/{pod['metadata']['name']}"
    hang = {"metadata": {"annotations": {"localfleet.dev/job": "hang"}}}
    await client.request("PATCH", place, hang, content_type=MERGE)
    # Its volume is bound when its storage class is there: until then nothing has ended it.
    await asyncio.to_thread(fleet.kubectl, worker, "apply", "-f-", documents=json.dumps(STORAGE))
    with TemporaryDirectory() as folder:
        word = await asyncio.to_thread(_hydrated, fleet, worker, pod, Path(folder))
    while _phase(pod) == "Pending":
        await asyncio.sleep(POLL_INTERVAL)
        pod = await client.request("GET", place)
    await client.request("PATCH", f"{place}/status", _ended(pod, word), content_type=STRATEGIC_MERGE)


def _phase(pod: Manifest) -> str:
    return pod.get("status", {}).get("phase", "Pending")


def _hydrated(fleet: Fleet, worker: str, pod: Manifest, folder: Path) -> str:
    """Run the pod's container here; answers its last word."""
    (container,), home = pod["spec"]["containers"], pod["metadata"]["namespace"]
    there = yaml.safe_load(fleet.kubeconfig(worker).read_text())["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(base64.b64decode(there["certificate-authority-data"]))
    (folder / "token").write_text(
        fleet.kubectl(worker, "-n", home, "create", "token", pod["spec"]["serviceAccountName"])
    )
    (folder / "volume").mkdir()
    with _hub() as url:
        mine = [f"--volume={folder / 'volume'}", f"--endpoint={url}", f"--server={there['server']}", "--report-every=1"]
        mine += [f"--account={folder}", f"--termination-message={folder / 'word'}"]
        done = subprocess.run(
            [sys.executable, *container["command"][1:], *container["args"], *mine],
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise OSError(f"the hydrator has failed: {done.stdout}{done.stderr}")
    return (folder / "word").read_text()


def _ended(pod: Manifest, word: str) -> Manifest:
    """The status of a pod whose container has ended well."""
    ended = {"exitCode": 0, "reason": "Completed", "message": word}
    container = pod["spec"]["containers"][0]
    state = {"running": None, "terminated": ended}
    told = {"name": container["name"], "image": container["image"], "imageID": "", "ready": False, "restartCount": 0}
    return {"status": {"phase": "Succeeded", "containerStatuses": [{**told, "state": state}]}}


# The hub --------------------------------------------------------------------------------------------------------------


@cache
def _files() -> dict[str, bytes]:
    weights = random.Random(1).randbytes(24 << 20)  # noqa: S311 - no secret
    return {"config.json": b'{"model_type": "made-up"}', "model.safetensors": weights}


@contextmanager
def _hub() -> Generator[str]:
    """What is asked of Hugging Face to download a model, for the one that there is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{REPO}"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(one),
                    "blobId": "",
                    "lfs": {"size": len(one), "sha256": _named(one), "pointerSize": 1},
                }
                for name, one in _files().items()
            ]
            content, name = json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode(), COMMIT
        elif (found := path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")) in _files():
            content, name = _files()[found], _named(_files()[found])
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for header, value in {
            "Content-Length": str(len(content)),
            "ETag": f'"{name}"',
            "X-Repo-Commit": COMMIT,
        }.items():
            self.send_header(header, value)
        self.end_headers()
        size = max(len(content) // PIECES, 1 << 16)
        for start in range(0, len(content) if body else 0, size):
            self.wfile.write(content[start : start + size])
            time.sleep(PAUSE if len(content) > size else 0)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody reads it."""


def _named(content: bytes) -> str:
    return sha256(content).hexdigest()
