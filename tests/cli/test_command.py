"""The command on a real API server: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.manifests import ROOT, Manifest, change

pytestmark = pytest.mark.fleet

READY = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-11-21T11:40:00Z"}
YES, ERROR, USAGE, NO, OUT_OF_REACH = range(5)


async def modelplane(api: Api, *arguments: str, stdin: str = "", kubeconfig: Path | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "modelplane_operator.cli", *arguments),
        f"--kubeconfig={kubeconfig or api.server.kubeconfig}",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        said, _ = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


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
    stored = await api.create(change(named(rich()["InferenceCluster"], "berlin"), "status.conditions", [READY]))
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
    assert (code, said.count("\n"), "nobody" in said) == (ERROR, 1, True)
    config = yaml.safe_load(api.server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = tmp_path / "kubeconfig"
    away.write_text(yaml.safe_dump(config))
    code, said = await modelplane(api, "fleet", kubeconfig=away)
    assert (code, said.count("\n"), "see whether kubectl reaches this hub" in said) == (OUT_OF_REACH, 1, True)
    code, said = await modelplane(api, "url", "default/nobody")
    assert (code, "kubectl get ms,md -n default" in said) == (NO, True)
