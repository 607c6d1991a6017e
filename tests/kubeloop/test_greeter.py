"""The worked example of kubeloop's README runs: on two API servers, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeloop.client.access import read_kubeconfig
from kubeloop.client.kube import Kube, connect
from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.types import CONFIG_MAP, ResourceType, register
from localfleet.fleet import Fleet
from localfleet.processes import Command, start
from tests.support.manifests import ROOT
from tests.support.processes import eventually

GREETINGS = ResourceType("example.com/v1alpha1", "Greeting", "greetings")
CRDS = ResourceType(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
register(GREETINGS, CRDS)
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
DEFINITION: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "greetings.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Greeting", "plural": "greetings", "singular": "greeting"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": SCHEMA},
            }
        ],
    },
}


@pytest.fixture
async def clusters(fleet: Fleet) -> AsyncIterator[tuple[Kube, Kube]]:
    async with (
        connect(read_kubeconfig(fleet.kubeconfig("hub").read_text())) as hub,
        connect(read_kubeconfig(fleet.kubeconfig("worker-1").read_text())) as worker,
    ):
        created = await hub.create(DEFINITION)
        await eventually(lambda: hub.find(CRDS, key_of(created)), is_established, "the kind")
        yield hub, worker
        await hub.delete(CRDS, Key("", "greetings.example.com"), uid=created["metadata"]["uid"])


@pytest.mark.fleet
async def test_a_greeting_is_on_the_other_cluster_until_it_is_deleted(
    fleet: Fleet, fleet_namespace: str, clusters: tuple[Kube, Kube], tmp_path: Path
) -> None:
    hub, worker = clusters
    key = Key(fleet_namespace, "hello")
    arguments = ["-m", "tests.kubeloop.greeter", str(fleet.kubeconfig("hub")), str(fleet.kubeconfig("worker-1"))]
    running = start(Command("greeter", [sys.executable, *arguments], tmp_path / "log", {"PYTHONPATH": str(ROOT)}))
    try:
        greeting = await hub.create(
            {
                "apiVersion": GREETINGS.api_version,
                "kind": "Greeting",
                "metadata": {"namespace": key.namespace, "name": key.name},
                "spec": {"text": "good morning"},
            }
        )
        config_map = await eventually(lambda: worker.find(CONFIG_MAP, key), bool, "the ConfigMap")
        assert config_map["data"] == {"text": "good morning"}
        ready = await eventually(lambda: hub.get(GREETINGS, key), is_ready, "the Greeting to be Ready")
        assert ready["metadata"]["finalizers"] == ["kubeloop/finalizer"]

        await hub.delete(GREETINGS, key, uid=greeting["metadata"]["uid"])
        await eventually(lambda: hub.find(GREETINGS, key), lambda found: found is None, "the Greeting to be gone")
        assert await worker.find(CONFIG_MAP, key) is None
    finally:
        await asyncio.to_thread(running.end)


def is_ready(greeting: Manifest) -> bool:
    return condition(greeting, "Ready").is_true


def is_established(definition: Manifest) -> bool:
    return condition(definition, "Established").is_true


def test_the_example_loads_nothing_of_modelplane() -> None:
    code = "import json, sys, tests.kubeloop.greeter; print(json.dumps([*sys.modules]))"
    modules = json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))
    assert not [name for name in modules if name.split(".")[0] == "modelplane_operator"]
