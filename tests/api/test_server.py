"""Our kinds as their user meets them on a real API server: examples, columns, scaling, upgrades, explanations."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from modelplane_operator.api import KINDS, InferenceCluster, LLMInference, ModelDeployment, crd
from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.golden import Golden
from tests.support.manifests import EXAMPLES, ROOT, Manifest, change, load

pytestmark = [pytest.mark.fleet, pytest.mark.server]

CONDITIONS = [
    {"type": "Synced", "status": "True", "reason": "ReconcileSuccess", "lastTransitionTime": "2026-11-21T11:40:00Z"},
    {"type": "Ready", "status": "False", "reason": "Creating", "lastTransitionTime": "2026-11-21T11:40:00Z"},
]


@pytest.fixture(scope="module", autouse=True)
async def namespaces(api: Api) -> AsyncIterator[None]:
    for name in ("ml-team", "platform", "modelplane-system"):
        await api.kubectl("create", "namespace", name)
    yield


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(ROOT)))
async def test_example_applies_and_is_stored_as_written(api: Api, file: Path) -> None:
    await api.kubectl("apply", "--server-side", "--field-manager=test", "-f", str(file))

    for manifest in load(file):
        stored = await api.get(manifest)
        again = await api.kubectl("diff", "--server-side", "--field-manager=test", "-f", str(file))
        assert again == "", f"applying {manifest['kind']} again would change it"
        assert _without_defaults(stored["spec"], manifest["spec"]) == manifest["spec"]
    await api.kubectl("delete", "-f", str(file))


def _without_defaults(stored: object, written: object) -> object:
    """What is stored, less what its author did not write."""
    match stored, written:
        case dict(), dict():
            return {key: _without_defaults(value, written[key]) for key, value in stored.items() if key in written}
        case list(), list() if len(stored) == len(written):
            return [_without_defaults(*pair) for pair in zip(stored, written, strict=True)]
        case _:
            return stored


async def test_columns_are_printed(api: Api, golden: Golden) -> None:
    printed: list[str] = []
    for kind in KINDS:
        manifest = named(rich()[kind.definition.kind], "columns")
        status = {**manifest.get("status", {}), "conditions": CONDITIONS}
        stored = await api.create({**manifest, "status": status})
        table = await api.kubectl("get", kind.definition.short, "columns")
        printed += [f"$ kubectl get {kind.definition.short}", *_aligned(table), ""]
        await api.delete(stored)

    golden.holds(Path(__file__).parent / "golden/columns.txt", "\n".join(printed))


def _aligned(table: str) -> list[str]:
    """The table with the age, which no two runs share, as `0s`."""
    return [re.sub(r"\s+", "  ", re.sub(r"\d+s\s*$", "0s", line)).rstrip() for line in table.splitlines()]


async def test_one_category_lists_every_kind(api: Api) -> None:
    listed = await api.kubectl("api-resources", "--categories=modelplane", "-o", "name")

    assert sorted(listed.split()) == sorted(kind.definition.name for kind in KINDS)


async def test_a_deployment_scales_to_zero_and_back(api: Api) -> None:
    stored = await api.create(named(rich()["ModelDeployment"], "scaled"))

    await api.kubectl("scale", "md/scaled", "--replicas=0")
    none = await api.get(stored, "scale")
    await api.kubectl("scale", "md/scaled", "--replicas=1000")
    many = await api.get(stored, "scale")
    await api.delete(stored)

    assert none["spec"] == {}  # the zero of Scale is left out
    assert many["spec"] == {"replicas": 1000}
    assert many["status"] == {"replicas": 1, "selector": "a=b"}


async def test_a_deployment_does_not_scale_past_its_bound(api: Api) -> None:
    stored = await api.create(named(rich()["ModelDeployment"], "bounded"))

    with pytest.raises(AssertionError, match="should be less than or equal to 1000"):
        await api.kubectl("scale", "md/bounded", "--replicas=1001")
    await api.delete(stored)


async def test_waiting_for_a_condition_ends_when_it_holds(api: Api) -> None:
    stored = await api.create(named(rich()["ModelService"], "awaited"))
    waiting = asyncio.create_task(api.kubectl("wait", "--for=condition=Ready", "ms/awaited", "--timeout=120s"))
    ready = [{**CONDITIONS[1], "status": "True", "reason": "Available"}]

    await api.replace(change(await api.get(stored), "status", {"conditions": ready}), "status")

    assert "condition met" in await waiting
    await api.delete(stored)


async def test_a_name_of_64_characters_is_refused(api: Api) -> None:
    assert await api.refusal(named(rich()["ModelService"], "a" * 63)) == ""
    assert "metadata.name" in await api.refusal(named(rich()["ModelService"], "a" * 64))


async def test_explain_tells_what_a_field_is_for(api: Api) -> None:
    said = await api.kubectl("explain", "modeldeployment.spec.template.spec.engines.members.worker.nodes")

    assert "Follower pods per copy" in said


async def test_objects_live_through_an_upgrade_of_their_definition(api: Api) -> None:
    """From what the reference ships, whose deployments are narrower, to ours."""
    before = [
        _as_the_reference_has_it(crd.definition(kind)) for kind in (ModelDeployment, InferenceCluster, LLMInference)
    ]
    deployment = change(named(rich()["ModelDeployment"], "survivor"), "spec.replicas", 3)
    too_many = change(named(deployment, "probe"), "spec.replicas", 1000)
    cluster = change(named(rich()["InferenceCluster"], "survivor"), "spec.nodePools[].name", "system")
    inference = change(named(rich()["LLMInference"], "survivor-2.5"), "metadata.finalizers", ["example.com/a"])
    await api.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(before))
    try:
        await _until(lambda: refused(api, too_many), "the narrower definition")
        old_deployment, old_cluster = await api.create(deployment), await api.create(cluster)
        await api.create(inference)
    finally:
        await api.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    await _until(lambda: taken(api, too_many), "the wider definition")

    assert (await api.get(deployment))["spec"] == old_deployment["spec"]
    grown = await api.replace(change(await api.get(deployment), "spec.replicas", 1000))
    assert grown["spec"]["replicas"] == 1000
    # A pool that would be refused today stays, and the rest of its object can still be changed.
    tainted = await api.replace(change(await api.get(cluster), "spec.taints", []))
    assert tainted["spec"]["nodePools"] == old_cluster["spec"]["nodePools"]
    # So does an object whose name would be refused, until it is deleted and our finalizer is taken from it.
    await api.delete(inference)
    await api.replace(change(await api.get(inference), "metadata.finalizers", []))
    await api.delete(deployment)
    await api.delete(cluster)


def _as_the_reference_has_it(definition: Manifest) -> Manifest:
    older = deepcopy(definition)
    (version,) = older["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    match older["spec"]["names"]["kind"]:
        case "ModelDeployment":
            spec["properties"]["replicas"] |= {"minimum": 1, "maximum": 10}
            del version["subresources"]["scale"]["labelSelectorPath"]
        case "LLMInference":
            del version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
        case "InferenceCluster":
            del spec["properties"]["nodePools"]["items"]["properties"]["name"]["x-kubernetes-validations"]
    return older


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """The server takes a changed definition into use after a moment."""
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline, f"waited 20 s for {what}, in vain"
        await asyncio.sleep(0.05)


async def refused(api: Api, manifest: Manifest) -> bool:
    return await api.refusal(manifest) != ""


async def taken(api: Api, manifest: Manifest) -> bool:
    return await api.refusal(manifest) == ""
