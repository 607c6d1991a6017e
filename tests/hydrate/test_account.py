"""What the account of a hydrator may do, as a real API server has it."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml

from kubeloop.client.kube import Kube
from kubeloop.objects import Key
from modelplane_operator.hydrate.progress import ANNOTATION
from modelplane_operator.hydrate.progress import Api as Way
from modelplane_operator.models.cache.render import Hydrator, render_account, render_job
from tests.support.api import Api
from tests.support.builders import model_cache

pytestmark = pytest.mark.fleet


def patch(url: str, way: Way, spec: Mapping[str, object]) -> None:
    token = (way.account / "token").read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    body = json.dumps({"spec": spec}).encode()
    request = urllib.request.Request(url, data=body, method="PATCH", headers=headers)  # noqa: S310 - our own server
    trust = ssl.create_default_context(cafile=str(way.account / "ca.crt"))
    with urllib.request.urlopen(request, context=trust):  # noqa: S310
        pass


async def test_a_hydrator_says_how_far_it_is_and_does_not_change_its_job(
    api: Api,
    kube: Kube,
    tmp_path: Path,
) -> None:
    """Or one that is taken over has its Job run a hundred pods."""
    made = model_cache()
    cache = made.model_copy(update={"metadata": made.metadata.model_copy(update={"uid": "uid-of-qwen"})})
    account = render_account(cache)
    job = render_job(cache, "volume", Hydrator("hydrator:v1"), attempt=0)
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([home, *account, job]))
    (tmp_path / "token").write_text(await kube.request_token(Key(namespace, account[0]["metadata"]["name"]), 600))
    (tmp_path / "ca.crt").write_text(kube.access.authority)
    way = Way(kube.access.server, tmp_path, namespace, name)
    url = f"{way.server}/apis/batch/v1/namespaces/{namespace}/jobs/{name}"

    await asyncio.to_thread(way.annotate, "half of it")
    for spec in ({"parallelism": 100}, {"suspend": True}, {"ttlSecondsAfterFinished": 0}, {"backoffLimit": 1000}):
        with pytest.raises(HTTPError, match="403"):
            await asyncio.to_thread(patch, url, way, spec)
    await asyncio.to_thread(patch, f"{url}/status", way, {"parallelism": 100})
    with pytest.raises(HTTPError, match="403"):
        await asyncio.to_thread(Way(way.server, tmp_path, namespace, "another").annotate, "x")

    live = yaml.safe_load(await api.kubectl("get", "job", name, f"-n{namespace}", "-oyaml"))
    assert live["metadata"]["annotations"][ANNOTATION] == "half of it"
    assert live["spec"]["parallelism"] == 1
