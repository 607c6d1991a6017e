"""A serving stack on a real API server, with the real Helm and small charts under the names of the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.kube import Kube, connect
from kubeloop.client.wire import Request
from kubeloop.errors import Conflict
from kubeloop.objects import Key, key_of
from kubeloop.resource import of
from kubeloop.types import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    GATEWAY,
    GATEWAY_CLASS,
    NAMESPACE,
    NODE,
    SECRET,
    SERVICE,
)
from localfleet import binaries
from localfleet.charts import stand_in
from localfleet.fleet import Fleet as LocalFleet
from localfleet.fleet import Options
from modelplane_operator.api import InferenceCluster, InferenceGateway, ModelReplica, ServingStack, labels
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.stack import controller as serving_stack
from modelplane_operator.clusters.stack.charts import STACK
from modelplane_operator.clusters.stack.definitions import read_definitions
from modelplane_operator.clusters.stack.plan import CHILDREN
from tests.support.api import Api
from tests.support.charts import SIMPLE, pack
from tests.support.existing import OPEN
from tests.support.helm import kill, noted_helm
from tests.support.manifests import ROOT, load
from tests.support.step_by_step import Operator, define, message, reason, watching
from tests.support.waiting import SECONDS, until

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

SOME = Key("modelplane-system", "east")
# Any will do: here one that is at hand.
DEFINITIONS = read_definitions(ROOT / "localfleet" / "leaderworkerset")
OURS = (ServingStack, InferenceCluster, ModelReplica, InferenceGateway)
READS = {"get", "list", "watch", "ping", "discover"}
INSTALLED = tuple(one for one in STACK if one.default)
GATEWAY_CRDS = ("gateway.networking.k8s.io_gateways", "gateway.networking.k8s.io_gatewayclasses")
ENVOY_CRDS = tuple(
    f"gateway.envoyproxy.io_{kind}" for kind in ("envoyproxies", "clienttrafficpolicies", "backendtrafficpolicies")
)


def fill(mirror: Path) -> None:
    """Every chart of the stack, at the versions that it asks for."""
    folders = binaries.ensure("gateway-api-crds", "envoy-gateway-crds")
    crds = [folders["gateway-api-crds"] / f"{name}.yaml" for name in GATEWAY_CRDS]
    crds += [folders["envoy-gateway-crds"] / f"{name}.yaml" for name in ENVOY_CRDS]
    defined = {f"crds/{path.name}": path.read_text() for path in crds}
    stack = ServingStack.parse(load(ROOT / "examples/infrastructure/serving-stack.yaml")[0])
    for one in STACK:
        version = one.version(stack.spec.versions)  # pyright: ignore[reportArgumentType]
        pack(mirror, one.chart, version, {**SIMPLE, **(defined if one.name == "envoy-gateway" else {})})


class Platform(Operator):
    """An operator with one stack."""

    async def address(self) -> None:
        """Do what Envoy Gateway does: give the gateway an address."""
        gateway = await self.kube.get(GATEWAY, Key("modelplane-system", "inference-gateway"))
        address = {"addresses": [{"type": "IPAddress", "value": "192.0.2.7"}]}
        await self.kube.replace_status({**gateway, "status": {**gateway.get("status", {}), **address}})

    async def installed(self) -> None:
        """Bring the stack to where all of it is there."""
        await self.until(lambda stack: reason(stack, "Installed") == "ComponentsInstalled", "all charts")
        await self.until(
            lambda stack: "no address yet" in message(stack, "Ready"), "the gateway to be all that is missing"
        )
        await self.address()
        await self.until(lambda stack: reason(stack, "Ready") == "Available", "the stack to be ready")


def component(stack: Manifest, name: str) -> Manifest:
    return next(one for one in stack["status"]["components"] if one["name"] == name)


@pytest.fixture
async def platform(clean_api: Api, tmp_path: Path) -> AsyncIterator[Platform]:
    (tmp_path / "mirror").mkdir()
    fill(tmp_path / "mirror")
    noted_helm(tmp_path)
    access = read_kubeconfig(clean_api.server.kubeconfig.read_text())
    async with connect(access) as kube:
        await ask_for_a_stack(kube)
        async with operating(kube, access, tmp_path) as platform:
            yield platform


async def ask_for_a_stack(kube: Kube, marks: dict[str, str] | None = None) -> None:
    """Make a stack that asks for nothing special, on a hub that lets its gateway answer anybody."""
    with suppress(Conflict):
        await kube.create(OPEN)
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SOME.namespace}})
    await kube.create(
        {
            "apiVersion": "infrastructure.modelplane.ai/v1alpha1",
            "kind": "ServingStack",
            "metadata": {"name": SOME.name, "namespace": SOME.namespace, "labels": marks or {}},
            "spec": {"secrets": [{"type": "Kubeconfig", "name": "east", "key": "kubeconfig"}]},
        }
    )


@asynccontextmanager
async def operating(
    kube: Kube, access: Access, folder: Path, *, name: str = "modelplane-system/east"
) -> AsyncIterator[Platform]:
    near = [Watched(of(kind), None, indexes=serving_stack.INDEXES.get(of(kind), {})) for kind in OURS]
    fabrics = Fabrics()
    remote = [*(Watched(kind) for kind in CHILDREN), serving_stack.RECORDS, *fabrics.watches()]
    async with watching(access, near, remote, name=name) as seen:
        platform = Platform(
            kube, folder, *seen, lambda helm: serving_stack.controller(DEFINITIONS, helm, fabrics), SOME
        )
        yield platform
        await platform.end()


async def test_a_stack_is_installed_in_order_and_then_nothing_more_is_done(platform: Platform) -> None:
    await platform.installed()
    stack = await platform.live()

    runs = platform.runs()
    assert sorted(runs) == sorted(f"upgrade mp-{one.chart}" for one in INSTALLED)
    assert runs.index("upgrade mp-node-feature-discovery") < runs.index("upgrade mp-dra-driver-nvidia-gpu")
    assert stack["status"]["gateway"] == {"address": "192.0.2.7", "http": True}
    assert {one["state"] for one in stack["status"]["components"]} == {"Deployed"}
    assert component(stack, "node-feature-discovery")["version"] == "0.18.3"
    (definition,) = DEFINITIONS
    assert await platform.kube.find(CUSTOM_RESOURCE_DEFINITION, key_of(definition)) is None, "no part needs it"
    config = await platform.kube.get(CONFIG_MAP, Key("node-feature-discovery", "mp-node-feature-discovery"))
    assert (
        config["data"]["values"]
        == '{"worker":{"tolerations":[{"effect":"NoSchedule","key":"nvidia.com/gpu","operator":"Exists"}]}}'
    )

    platform.restart()
    platform.calls.clear()
    await platform.step()
    assert [f"{call.verb} {call.resource}" for call in platform.calls if call.verb not in READS] == []
    assert platform.runs() == runs

    # Whoever may write Secrets in one namespace writes such a record, and Helm would delete all that it lists.
    forged = Key("elsewhere", "mp-node-feature-discovery")
    record = await platform.kube.get(
        SECRET, Key("node-feature-discovery", "sh.helm.release.v1.mp-node-feature-discovery.v1")
    )
    metadata = {"namespace": forged.namespace, **{name: record["metadata"][name] for name in ("name", "labels")}}
    await platform.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": forged.namespace}})
    await platform.kube.create({**record, "metadata": metadata})
    await until(lambda: bool(platform.history(forged)), "the record to be seen")
    await platform.step()
    assert reason(await platform.live(), "Installed") == "ComponentsInstalled", "nothing is to be uninstalled"


async def test_what_the_cluster_has_from_somebody_else_is_left_out_until_it_is_asked_for_by_name(
    platform: Platform,
) -> None:
    theirs = {"meta.helm.sh/release-namespace": "obs", "meta.helm.sh/release-name": "kps"}
    definition = load(ROOT / "localfleet/leaderworkerset/crd.yaml")[0]
    await platform.kube.create({**definition, "metadata": {**definition["metadata"], "annotations": theirs}})
    await platform.installed()
    stack = await platform.live()

    assert component(stack, "leader-worker-set") == {
        "name": "leader-worker-set",
        "state": "Present",
        "message": "already installed by Helm release obs/kps",
    }
    assert "upgrade mp-lws" not in platform.runs()

    await platform.ask(components=[{"name": "leader-worker-set"}])
    await platform.until(lambda stack: component(stack, "leader-worker-set")["state"] == "Deployed", "ours beside it")
    await platform.ask(components=[])
    platform.restart()
    await platform.step()
    assert component(await platform.live(), "leader-worker-set")["state"] == "Deployed", "what is ours stays ours"


async def test_definitions_that_the_ai_gateway_needs_come_with_it_and_stay(platform: Platform) -> None:
    await platform.installed()
    (definition,) = DEFINITIONS
    await platform.ask(components=[{"name": "ai-gateway-crds"}, {"name": "ai-gateway"}])

    def runs(stack: Manifest) -> bool:
        return any((one["name"], one["state"]) == ("ai-gateway", "Deployed") for one in stack["status"]["components"])

    await platform.until(runs, "the AI gateway")
    assert await platform.kube.find(CUSTOM_RESOURCE_DEFINITION, key_of(definition)) is not None

    await platform.ask(components=[{"name": name, "enabled": False} for name in ("ai-gateway-crds", "ai-gateway")])
    await platform.until(lambda stack: "ai-gateway" not in str(stack["status"]["components"]), "it to go")
    assert await platform.kube.find(CUSTOM_RESOURCE_DEFINITION, key_of(definition)) is not None

    def settled(stack: Manifest) -> bool:
        known = [one["observedGeneration"] for one in stack["status"]["conditions"] if one["type"] == "Installed"]
        return known == [stack["metadata"]["generation"]] and reason(stack, "Installed") == "ComponentsInstalled"

    await platform.until(settled, "every Helm to end, which would leave its release to the next test")


async def test_parts_are_upgraded_one_at_a_time_and_extras_come_last(platform: Platform) -> None:
    await platform.installed()
    installed = len(platform.runs())
    pack(platform.folder / "mirror", "node-feature-discovery", "0.18.4")
    pack(platform.folder / "mirror", "extra", "1.0.0")
    extra = {"name": "extra", "namespace": "extras", "chart": "extra", "version": "1.0.0"}
    await platform.ask(
        components=[
            {"name": "node-feature-discovery", "version": "0.18.4"},
            {"name": "prometheus", "values": {"grafana": {"enabled": True}}},
        ],
        extraCharts=[{**extra, "repository": "https://charts.example.com"}],
    )
    seen: set[int] = set()

    def done(stack: Manifest) -> bool:
        upgrading = [one["name"] for one in stack["status"]["components"] if one["state"] == "Upgrading"]
        seen.add(len(upgrading))
        return len(platform.runs()) > installed and reason(stack, "Installed") == "ComponentsInstalled"

    stack = await platform.until(done, "the upgrades")
    assert max(seen) == 1
    assert sorted(platform.runs()[installed:]) == sorted(
        ["upgrade mp-node-feature-discovery", "upgrade mp-kube-prometheus-stack", "upgrade extra"]
    )
    assert component(stack, "node-feature-discovery")["version"] == "0.18.4"
    config = await platform.kube.get(CONFIG_MAP, Key("monitoring", "mp-kube-prometheus-stack"))
    assert '"alertmanager":{"enabled":false}' in config["data"]["values"]
    assert '"grafana":{"enabled":true}' in config["data"]["values"]

    await platform.ask(components=[{"name": "prometheus", "enabled": False}], extraCharts=[])
    gone = (Key("monitoring", "mp-kube-prometheus-stack"), Key("extras", "extra"))
    await platform.until(lambda _: not any(map(platform.history, gone)), "what is no longer wanted to go")


async def test_an_upgrade_that_fails_is_taken_back_and_not_tried_again_at_once(platform: Platform) -> None:
    await platform.installed()
    await platform.ask(components=[{"name": "node-feature-discovery", "values": {"refused": True}}])
    stack = await platform.until(lambda stack: reason(stack, "Installed") == "RolledBack", "the way back")
    stack = await platform.until(
        lambda stack: component(stack, "node-feature-discovery")["state"] == "RolledBack", "the end of it"
    )

    release = Key("node-feature-discovery", "mp-node-feature-discovery")
    assert [(one.number, one.status) for one in platform.history(release)] == [
        (3, "deployed"),
        (2, "failed"),
        (1, "superseded"),
    ]
    assert "node-feature-discovery: " in message(stack, "Installed")
    assert "Invalid value: 99999" in message(stack, "Installed")
    assert reason(stack, "Ready") == "Available", "what ran before runs"
    platform.restart()
    runs = platform.runs()
    await platform.step()
    assert platform.runs() == runs

    platform.ahead = timedelta(minutes=11)
    await platform.step()
    assert platform.runs() == runs, "what the cluster refused is not tried again by itself"
    assert reason(stack, "ServingStackRollout") == "Stopped"
    assert "Invalid value: 99999" in message(stack, "ServingStackRollout")
    await platform.annotate(**{labels.RETRY: "once more"})
    await platform.until(lambda _: len(platform.history(release)) == 5, "another attempt, and its way back")
    await platform.ask(components=[])
    await platform.until(lambda stack: reason(stack, "Installed") == "ComponentsInstalled", "what was asked first")


async def test_definitions_of_a_chart_are_upgraded_before_it(platform: Platform) -> None:
    """Helm installs them once. A definition that serves a version that the chart lacks stays."""

    def define_toys(kind: str, *versions: str) -> Manifest:
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        served = [
            {"name": version, "served": True, "storage": version == versions[0], "schema": schema}
            for version in versions
        ]
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind}s.toys.example.com"},
            "spec": {
                "group": "toys.example.com",
                "scope": "Cluster",
                "names": {"plural": f"{kind}s", "singular": kind, "kind": kind.title(), "listKind": f"{kind}List"},
                "versions": served,
            },
        }

    async def versions_of(kind: str) -> list[str]:
        live = await platform.kube.get(CUSTOM_RESOURCE_DEFINITION, Key("", f"{kind}s.toys.example.com"))
        return [version["name"] for version in live["spec"]["versions"]]

    def pack_with(version: str, *definitions: Manifest) -> None:
        crds = {f"crds/{number}.yaml": yaml.safe_dump(one) for number, one in enumerate(definitions)}
        pack(platform.folder / "mirror", "node-feature-discovery", version, {**SIMPLE, **crds})

    pack_with("0.18.3", define_toys("car", "v1"), define_toys("bear", "v1", "v2"))
    await platform.installed()
    assert (await versions_of("car"), await versions_of("bear")) == (["v1"], ["v1", "v2"])

    pack_with("0.18.4", define_toys("car", "v1", "v2"), define_toys("bear", "v1"), define_toys("boat", "v1"))
    await platform.ask(components=[{"name": "node-feature-discovery", "version": "0.18.4"}])
    await platform.until(
        lambda stack: component(stack, "node-feature-discovery").get("version") == "0.18.4", "the upgrade"
    )
    assert (await versions_of("car"), await versions_of("bear")) == (["v1", "v2"], ["v1", "v2"])
    assert await versions_of("boat") == ["v1"]


@pytest.mark.parametrize("first", [True, False], ids=["install", "upgrade"])
async def test_an_operator_that_dies_with_its_helm_is_followed_by_one_that_goes_on(
    platform: Platform, *, first: bool
) -> None:
    release = Key("node-feature-discovery", "mp-node-feature-discovery")
    if not first:
        await platform.installed()
    await platform.ask(components=[{"name": "node-feature-discovery", "values": {"hang": True}}])
    await platform.until(lambda _: platform.status(release).startswith("pending"), "Helm to hang")
    kill(platform.folder)
    platform.restart()
    await platform.step()
    stack = await platform.live()
    assert "Helm may still be at work on revision" in component(stack, "node-feature-discovery")["message"]

    await platform.ask(components=[])
    platform.ahead = timedelta(seconds=platform.helm.patience + 1)
    await platform.until(lambda _: platform.status(release) == "deployed", "the next operator to go on")
    assert not [run for run in platform.runs() if run.startswith("uninstall")]
    assert [one.status for one in platform.history(release)].count("deployed") == 1


async def test_a_chart_that_is_missing_is_said_and_installed_once_it_is_there(platform: Platform) -> None:
    (platform.folder / "mirror" / "node-feature-discovery-0.18.3.tgz").unlink()
    await platform.until(lambda stack: reason(stack, "Installed") == "InstallFailed", "the failure")
    said = "the chart mirror has no node-feature-discovery-0.18.3.tgz"

    def told(stack: Manifest) -> bool:  # and not in between, while it is tried again
        return component(stack, "prometheus")["state"] == "Deployed" and said in message(stack, "Installed")

    stack = await platform.until(told, "the others, and still the failure")
    assert (reason(stack, "Ready"), said in message(stack, "Ready")) == ("InstallFailed", True)

    pack(platform.folder / "mirror", "node-feature-discovery", "0.18.3")
    platform.ahead = timedelta(minutes=5)
    await platform.installed()


async def test_a_stack_goes_from_the_front_and_leaves_nothing_of_its_own(platform: Platform) -> None:
    await platform.installed()
    await platform.delete()
    installed = len(platform.runs())

    def charts_gone(_: Manifest) -> bool:
        return len(platform.runs()) == installed + len(INSTALLED) and not platform.remote.find(SECRET).count  # pyright: ignore[reportOptionalMemberAccess]

    await platform.until(charts_gone, "the charts to go")
    order = [run.split()[1] for run in platform.runs()[installed:]]
    assert order.index("mp-dra-driver-nvidia-gpu") < order.index("mp-node-feature-discovery")
    assert await platform.kube.find(GATEWAY, Key("modelplane-system", "inference-gateway")) is None
    # No controller ends namespaces here: the stack waits, and lets go when they are gone.
    await platform.until(
        lambda stack: message(stack, "Ready").startswith("Waiting for deletions: "), "the namespaces to go"
    )
    async with asyncio.timeout(SECONDS):
        while await platform.kube.find(of(ServingStack), SOME) is not None:
            for namespace in (await platform.kube.list(NAMESPACE, selector=labels.OWNER_UID)).items:
                if namespace["metadata"].get("deletionTimestamp"):
                    await finalize(platform, namespace)
            await asyncio.sleep(0.3)
            await platform.step()


async def finalize(platform: Platform, namespace: Manifest) -> None:
    """Do what the namespace controller does once a namespace is empty."""
    body = orjson.dumps({**namespace, "spec": {"finalizers": []}})
    path = NAMESPACE.path(name=namespace["metadata"]["name"], subresource="finalize")
    await platform.kube._wire.ask(Request("finalize", "namespaces", "PUT", path, body), operation="finalize")


# On a cluster with controllers, nodes and a real Envoy Gateway --------------------------------------------------------

EAST: Manifest = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "InferenceCluster",
    "metadata": {"name": "east"},
    "spec": {"cluster": {"source": "Existing", "existing": {"secretRef": {"name": "east"}}}},
    "status": {
        "gpuPools": [
            {"name": "h100", "nodes": 2, "devices": [{"name": "gpu", "driver": "late.example.com", "count": 8}]},
            {"name": "empty", "nodes": 4, "devices": [{"name": "gpu", "driver": "none.example.com", "count": 8}]},
        ]
    },
}
SLICE: Manifest = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "late"},
    "spec": {
        "driver": "late.example.com",
        "pool": {"name": "late", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kubeconfig of a cluster that has everything but software."""
    fleet = LocalFleet(tmp_path_factory.mktemp("stack") / "fleet")
    try:
        fleet.up(Options(workers=1, data_plane=False))
        yield fleet.kubeconfig("worker-1").read_text()
    finally:
        fleet.down()


async def test_a_stack_serves_on_a_cluster_with_nothing_and_leaves_nothing(worker: str, tmp_path: Path) -> None:
    noted_helm(tmp_path)
    (tmp_path / "mirror").mkdir()
    fill(tmp_path / "mirror")
    for chart, version in (("gateway-helm", "v1.9.1"), ("lws", "v0.8.0")):
        pack(tmp_path / "mirror", chart, version, stand_in(chart))
    access = read_kubeconfig(worker)
    async with connect(access) as kube:
        await define(kube, OURS)
        async with operating(kube, access, tmp_path, name="east") as platform:
            before = {one["metadata"]["name"] for one in (await kube.list(NAMESPACE)).items}
            marks = {labels.OWNER_KIND: "InferenceCluster", labels.OWNER_NAME: "east"}
            await ask_for_a_stack(kube, marks)
            cluster = await kube.create(EAST)
            await kube.replace_status({**cluster, "status": EAST["status"]})
            waits = "No node publishes the devices of pool h100"
            stack = await platform.until(lambda stack: message(stack, "Ready") == waits, "all but the devices")
            assert stack["status"]["gateway"]["address"].startswith("10.")

            node = (await kube.list(NODE, selector="modelplane.ai/pool=h100")).items[0]["metadata"]["name"]
            await kube.create({**SLICE, "spec": {**SLICE["spec"], "nodeName": node}})
            await platform.until(lambda stack: reason(stack, "Ready") == "Available", "the stack to be ready")

            await platform.delete()
            async with asyncio.timeout(180):
                while await kube.find(of(ServingStack), SOME) is not None:
                    await platform.step()
                    await asyncio.sleep(0.2)
            left = {one["metadata"]["name"] for one in (await kube.list(NAMESPACE)).items}
            assert left == before | {SOME.namespace}
            assert [one for one in (await kube.list(SERVICE)).items if one["spec"]["type"] == "LoadBalancer"] == []
            assert (await kube.list(GATEWAY_CLASS)).items == []
            assert (await kube.list(SECRET, selector="owner=helm")).items == []
