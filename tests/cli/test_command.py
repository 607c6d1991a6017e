"""The command on a real API server: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from kubeloop.client.kube import connect
from modelplane_operator.cli.kubeconfig import target
from modelplane_operator.cli.page.live import Live, sees_all
from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.command import ERROR, NO, OUT_OF_REACH, USAGE, YES
from tests.support.command import modelplane as typed
from tests.support.manifests import Manifest, change

pytestmark = pytest.mark.fleet

READY = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-11-21T11:40:00Z"}


async def modelplane(api: Api, *arguments: str, stdin: str = "", kubeconfig: Path | None = None) -> tuple[int, str]:
    return await typed(kubeconfig or api.server.kubeconfig, *arguments, stdin=stdin)


def deployment(memory: str, replicas: int = 2) -> Manifest:
    """Replicas of one engine that wants a GPU of that size."""
    cel = f'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{memory}")) >= 0'
    request = {"name": "gpu", "count": 1, "selectors": [{"cel": cel}]}
    member = {
        "nodeSelector": {"devices": [request]},
        "template": {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}},
    }
    return {
        **named(rich()["ModelDeployment"], "asked"),
        "spec": {"replicas": replicas, "template": {"spec": {"engines": [{"name": "vllm", "members": [member]}]}}},
    }


@pytest.fixture
async def cluster(api: Api) -> AsyncIterator[None]:
    """One cluster with a single free node of eight 80 GiB GPUs."""
    berlin = change(named(rich()["InferenceCluster"], "berlin"), "status.conditions", [READY])
    stored = await api.create(change(berlin, "status.gpuPools[].sharing", "Node"))
    stored = await api.replace(change(stored, "spec.taints", []))
    yield
    await api.delete(stored)


@pytest.fixture
async def asked(api: Api, cluster: None) -> AsyncIterator[Manifest]:
    stored = await api.create(deployment("80Gi"))
    yield stored
    await api.delete(stored)


async def test_why_names_cause_and_remedy_in_its_first_lines_and_ends_with_three(api: Api, asked: Manifest) -> None:
    code, said = await modelplane(api, "why", "default/asked")
    first, cause, remedy, *_ = said.splitlines()
    assert code == NO
    assert first.startswith("default/asked is not Ready")
    assert cause.startswith("1 of 2 replicas placed on 1 cluster; 1 cluster checked: 1 with too few free nodes")
    assert remedy.startswith("What would help: ")
    assert "Ask for 1 replica and not 2" in said


async def test_why_for_programs_is_json_of_a_schema_with_a_version(api: Api, asked: Manifest) -> None:
    code, said = await modelplane(api, "why", "asked", "-n", "default", "-o", "json")
    answer = json.loads(said)
    assert (code, answer["apiVersion"], answer["kind"]) == (NO, "cli.modelplane.ai/v1", "Why")
    assert (answer["name"], answer["desired"], answer["waiting"], answer["ready"]) == ("asked", 2, 1, False)


SERVICE = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "front", "namespace": "default"},
    "spec": {"endpoints": [{"selector": {"matchLabels": {"modelplane.ai/deployment": "asked"}}}]},
}
INFERENCE = {
    "apiVersion": "inference.devopstoolkit.ai/v1alpha1",
    "kind": "LLMInference",
    "metadata": {"name": "llm", "namespace": "default"},
    "spec": {"model": "Qwen/Qwen3-8B", "gpu": 1, "placement": "Fleet"},
}


async def test_why_explains_services_and_inferences_by_their_deployments(api: Api, asked: Manifest) -> None:
    for manifest in (SERVICE, INFERENCE):
        await api.create(manifest)
    for name in ("service/front", "ms/front", "modelservices.modelplane.ai/front", "front"):
        code, said = await modelplane(api, "why", name)
        first, second, third = said.splitlines()[:3]
        assert (code, first) == (NO, "ModelService default/front is not Ready (NotReconciled)")
        assert second.startswith("ModelDeployment asked: ")
        assert third.startswith("What would help: ")
    assert await modelplane(api, "why", "deployment/front") == (
        ERROR,
        (
            "modelplane: there is no ModelDeployment default/front: kubectl get modeldeployments -n default lists those"
            " that exist\n"
        ),
    )
    code, said = await modelplane(api, "why", "llminference/llm")
    assert (code, said.splitlines()[0]) == (NO, "LLMInference default/llm is not Ready (NotReconciled)")
    assert "starting (waiting for: the operator's first status)" in said.splitlines()[1].lower()
    code, said = await modelplane(api, "why", "llmi/llm", "-o", "json")
    assert (code, json.loads(said)["objectKind"]) == (NO, "LLMInference")
    code, said = await modelplane(api, "why", "service/llm")
    assert (code, "there is no ModelService default/llm" in said) == (ERROR, True)


async def test_a_plan_of_a_file_is_told_and_nothing_is_written(api: Api, cluster: None) -> None:
    text = yaml.safe_dump(deployment("80Gi", replicas=1))
    code, said = await modelplane(api, "plan", "-f", "-", stdin=text)
    assert (code, "+ berlin/" in said) == (YES, True)
    assert "asked" not in await api.kubectl("get", "modeldeployments", "-ndefault")
    code, said = await modelplane(api, "plan", "-f", "-", stdin=yaml.safe_dump(deployment("100Gi")))
    assert (code, "memory is 80Gi, needs >= 100Gi" in said) == (NO, True)


async def test_a_plan_without_a_cluster_and_with_more_replicas(api: Api, asked: Manifest) -> None:
    code, said = await modelplane(api, "plan", "default/asked", "--replicas", "1")
    assert (code, "1 of 1 replica placed" in said) == (YES, True)
    code, said = await modelplane(api, "plan", "--without", "nowhere")
    assert (code, "there are: berlin" in " ".join(said.split())) == (USAGE, True)


async def test_hardware_and_fleet_are_tables(api: Api, cluster: None) -> None:
    code, said = await modelplane(api, "hardware")
    assert (code, 'device.driver == "gpu.nvidia.com"' in said) == (YES, True)
    code, said = await modelplane(api, "fleet")
    assert (code, "berlin" in said.splitlines()[1]) == (YES, True)


async def test_what_is_not_there_or_out_of_reach_is_one_line_with_what_to_do(api: Api, tmp_path: Path) -> None:
    code, said = await modelplane(api, "why", "default/nobody")
    assert (code, said.count("\n"), "kubectl get modeldeployments,modelservices," in said) == (ERROR, 1, True)
    assert "there is no ModelDeployment, ModelService or LLMInference default/nobody" in said
    for command in ("tree", "events", "logs"):
        code, said = await modelplane(api, command, "default/nobody")
        assert (code, said.count("\n"), "kubectl get modeldeployments -n default" in said) == (ERROR, 1, True)
    config = yaml.safe_load(api.server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = tmp_path / "kubeconfig"
    away.write_text(yaml.safe_dump(config))
    code, said = await modelplane(api, "fleet", kubeconfig=away)
    assert (code, said.count("\n"), "see whether kubectl reaches this hub" in said) == (OUT_OF_REACH, 1, True)
    code, said = await modelplane(api, "url", "default/nobody")
    assert (code, "kubectl get ms,md -n default" in said) == (NO, True)


async def test_the_page_follows_the_hub(api: Api, asked: Manifest) -> None:
    found = target(api.server.kubeconfig, None)
    async with connect(found.access) as kube:
        assert await sees_all(kube)
    live = Live(found, "", lambda: found)
    running = asyncio.create_task(live.run())
    async with asyncio.timeout(60):
        rows = live.rows
        while not (rows and rows["page"]["state"]["synced"] and rows["clusters"] and rows["models"]):
            rows = await live.wait_for_change(rows, 60)
        assert (rows["clusters"].keys(), rows["models"]["default/asked"]["desired"]) == ({"berlin"}, 2)
        assert rows["page"]["state"]["trouble"] == ""
        await api.kubectl("scale", "modeldeployment", "asked", "-ndefault", "--replicas=5")
        while rows["models"]["default/asked"]["desired"] != 5:
            rows = await live.wait_for_change(rows, 60)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_the_rest_of_the_commands_in_turn(api: Api, asked: Manifest, tmp_path: Path) -> None:
    """One server for all of them: what each finds of a model without replicas, on a cluster that is only told of."""
    code, said = await modelplane(api, "tree", "default/asked")
    assert (code, said.splitlines()[0].startswith("ModelDeployment default/asked")) == (YES, True)
    assert "1 without a place: modelplane why default/asked" in said
    code, said = await modelplane(api, "events", "default/asked")
    assert (code, "There are no Events of default/asked" in said) == (YES, True)
    code, said = await modelplane(api, "logs", "default/asked")
    assert (code, "has no replica: modelplane why default/asked" in said) == (NO, True)
    code, said = await modelplane(api, "top", "models", "-o", "json")
    assert (code, [(one["name"], one["desired"]) for one in json.loads(said)["items"]]) == (YES, [("asked", 2)])
    code, said = await modelplane(api, "top", "clusters")
    assert (code, said.splitlines()[1].split()[0]) == (YES, "berlin")

    await modelplane(api, "drain", "berlin", "--dry-run")
    taints = "-ojsonpath={.spec.taints[*].key}"
    assert await api.kubectl("get", "inferencecluster", "berlin", taints) == ""
    code, said = await modelplane(api, "drain", "berlin", "--timeout", "5", "-o", "json")
    told = {"kind": "Drain", "cluster": "berlin", "drained": True, "empty": True, "replicas": 0}
    assert (code, json.loads(said).items() >= told.items()) == (YES, True), said
    code, said = await modelplane(api, "drain", "berlin", "--timeout", "5")
    assert (code, "berlin is empty." in said) == (YES, True)
    assert await api.kubectl("get", "inferencecluster", "berlin", taints) == "modelplane.ai/drain"
    code, said = await modelplane(api, "why", "default/asked")
    assert (code, "On cluster berlin: add capacity elsewhere, or end the drain" in said) == (NO, True)
    code, _ = await modelplane(api, "drain", "berlin", "--undo")
    assert (code, await api.kubectl("get", "inferencecluster", "berlin", taints)) == (YES, "")
    code, said = await modelplane(api, "drain", "nowhere")
    assert (code, "there are: berlin" in said) == (NO, True)

    file = tmp_path / "help.tar.gz"
    code, said = await modelplane(api, "bundle", "--file", str(file), "-o", "json")
    assert "versions.txt" in json.loads(said)["contents"]
    with tarfile.open(file) as archive:
        names = {Path(one).name for one in archive.getnames()}
    assert (code, {"versions.txt", "modeldeployments.yaml", "events.yaml"} <= names) == (YES, True)
    assert "secrets.yaml" not in names


async def test_a_cluster_is_checked_and_registered_from_what_it_publishes(api: Api) -> None:
    """The server is the hub and the cluster at once."""
    context = (await api.kubectl("config", "current-context")).strip()
    code, said = await modelplane(api, "register", "lab", "--from-context", context)
    assert (code, "no DRA driver has published devices" in said) == (NO, True)
    await api.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(LAB))
    code, said = await modelplane(api, "check", "--context", context, "-o", "json")
    found = {one["check"]: one for one in json.loads(said)["items"]}
    assert (code, found["devices"]["says"]) == (YES, "1 node with 2 NVIDIA H100 on each node")
    code, said = await modelplane(api, "register", "lab", "--from-context", context, "--dry-run")
    assert [one["kind"] for one in yaml.safe_load_all(said)] == ["InferenceClass", "InferenceCluster"]
    _, again = await modelplane(api, "register", "lab", "--from-context", context, "--dry-run", "-o", "json")
    assert json.loads(again)["items"] == [*yaml.safe_load_all(said)]
    code, said = await modelplane(api, "register", "lab", "--from-context", context)
    assert (code, "examples/access/with-helm.yaml" in said) == (NO, True)
    await api.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(ACCOUNT))
    code, said = await modelplane(api, "register", "lab", "--from-context", context)
    assert (code, "lab is registered" in said) == (YES, True), said
    label = await api.kubectl("get", "node", "dgx-1", "-ojsonpath={.metadata.labels.modelplane\\.ai/pool}")
    assert label == "2-nvidia-h100"
    text = await api.kubectl("get", "secret", "lab-kubeconfig", "-nmodelplane-system", "-ojsonpath={.data.kubeconfig}")
    user = yaml.safe_load(base64.b64decode(text))["users"][0]["user"]
    assert set(user) == {"token"}
    code, said = await modelplane(api, "register", "lab", "--from-context", context)
    assert (code, "there is an InferenceCluster lab already" in said) == (NO, True)
    await api.kubectl("delete", "inferencecluster,inferenceclass", "--all", "--wait=false")


DEVICES = [{"name": f"gpu-{n}", "attributes": {"productName": {"string": "NVIDIA H100"}}} for n in range(2)]
LAB: list[Manifest] = [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dgx-1"}},
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {},
    },
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "dgx-1-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "dgx-1",
            "pool": {"name": "dgx-1", "generation": 1, "resourceSliceCount": 1},
            "devices": DEVICES,
        },
    },
]
ACCOUNT: list[Manifest] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "modelplane-access"}},
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "modelplane-system"}},
    {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "modelplane-operator", "namespace": "modelplane-access"},
    },
    {  # which a controller makes that does not run beside this server
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kube-root-ca.crt", "namespace": "modelplane-access"},
        "data": {"ca.crt": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"},
    },
]
