"""A real API server takes what is rendered: every field is known, and every pod is let in by Pod Security.

The kinds of the Gateway API are in the server as their project publishes them, LeaderWorkerSet as the fleet has it.
PodMonitor is not: its module is none of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
import yaml

from localfleet import binaries
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.pods import Capability
from modelplane_operator.models.replica.render import (
    EXTENSION_POLICIES,
    LEADER_WORKER_SETS,
    CannotRender,
    Context,
    render_model_replica,
)
from modelplane_operator.models.replica.render.fences import BEYOND_BASELINE
from tests.rendering.cases import CASES, render
from tests.support.api import Api
from tests.support.manifests import ROOT, Manifest
from tests.support.vllm import DEFINITION as VLLM_RUNTIMES

pytestmark = pytest.mark.fleet

NAMESPACES = {
    "ml-team": {},
    "team-a": {},
    "modelplane-system": {},
    "modelplane-ml-team": {},
    "inference-small": {},
    "inference-large": {},
    "dra-driver-nvidia-gpu": {},
    "baseline": {"pod-security.kubernetes.io/enforce": "baseline"},
    "restricted": {"pod-security.kubernetes.io/enforce": "restricted"},
    "privileged": {"pod-security.kubernetes.io/enforce": "privileged"},
}
PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "serving"},
    "value": 1000,
}
OF_CLOUDS = {"eks_cluster", "gke_cluster"}
"""What is rendered there is calls to a cloud, and no object."""
NOT_SERVED = {"IPAddressPool", "L2Advertisement", "PodMonitor"}


@pytest.fixture(scope="module")
async def server(api: Api) -> Api:
    """The API server with the kinds of others that we write, and the namespaces that our objects are in."""
    bundled = [binaries.ensure(name)[name] for name in ("gateway-api-crds", "envoy-gateway-crds")]
    bundled.append(binaries.ensure("traefik-crds")["traefik-crds"] / "01-traefik-crd.yml")
    await api.define(*bundled, ROOT / "localfleet/leaderworkerset/crd.yaml")
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": known}}
        for name, known in NAMESPACES.items()
    ]
    await api.kubectl(
        "apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([*namespaces, PRIORITY_CLASS, VLLM_RUNTIMES])
    )
    await api.until_served(VLLM_RUNTIMES)
    return api


@pytest.mark.parametrize("module", sorted({case.parent.name for case in CASES} - OF_CLOUDS))
async def test_the_server_takes_every_object_and_pod(server: Api, module: str) -> None:
    rendered = [manifest for case in CASES if case.parent.name == module for manifest in render(case)]
    written = [manifest for manifest in rendered if manifest.get("kind") not in {None, *NOT_SERVED}]
    tried = [*written, *pods(written)]

    assert len((await dry_run(server, tried)).splitlines()) == len(tried)


async def test_the_server_does_refuse_what_is_wrong(server: Api) -> None:
    """Or the test above could not fail."""
    wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong", "namespace": "baseline"}}
    container = {"name": "engine", "image": "engine:v1"}

    with pytest.raises(AssertionError, match="PodSecurity"):
        await dry_run(server, [{**wrong, "spec": {"containers": [container], "hostNetwork": True}}])
    with pytest.raises(AssertionError, match="unknownField"):
        await dry_run(server, [{**wrong, "spec": {"containers": [container], "unknownField": True}}])


@pytest.mark.parametrize("capability", get_args(Capability))
async def test_pod_security_refuses_what_we_take_for_more_than_baseline_and_nothing_else(
    server: Api, capability: str
) -> None:
    security = {"capabilities": {"drop": ["ALL"], "add": [capability]}}
    container = {"name": "engine", "image": "engine:v1", "securityContext": security}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "some", "namespace": "baseline"}}
    tried = dry_run(server, [{**pod, "spec": {"containers": [container]}}])

    if capability in BEYOND_BASELINE:
        with pytest.raises(AssertionError, match="PodSecurity"):
            await tried
    else:
        await tried


async def dry_run(server: Api, manifests: Sequence[Manifest]) -> str:
    return await server.kubectl(
        *("apply", "--server-side", "--field-manager=modelplane", "--force-conflicts"),  # as we write them
        *("--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=yaml.safe_dump_all(manifests),
    )


def pods(manifests: Sequence[Manifest]) -> list[Manifest]:
    """A pod of every template. Engines may run as root; nothing else of ours may do more than it must."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "name": f"{manifest['metadata']['name']}-{number}",
                "namespace": level(template["spec"]),
            },
            "spec": template["spec"],
        }
        for manifest in manifests
        for number, template in enumerate(templates(manifest))
    ]


def level(spec: Manifest) -> str:
    """The namespace, by its level of Pod Security, that is to take a pod."""
    engine, *_ = spec["containers"]
    if engine["name"] != "engine":
        return "restricted"
    asked = engine["securityContext"].get("capabilities", {}).get("add", ())
    return "privileged" if BEYOND_BASELINE.intersection(asked) else "baseline"


def templates(manifest: Manifest) -> list[Manifest]:
    match manifest["kind"]:
        case "Deployment":
            return [manifest["spec"]["template"]]
        case "LeaderWorkerSet":
            gang = manifest["spec"]["leaderWorkerTemplate"]
            return [gang["leaderTemplate"], gang["workerTemplate"]]
        case _:
            return []


@pytest.mark.parametrize("revision", [0, 1, 2])
async def test_no_pod_of_a_user_is_behind_a_service_or_a_door_that_is_not_its_own(server: Api, revision: int) -> None:
    """The gateway asks whatever a picker's Service leads to where requests go: that may be no engine."""
    ours = of_a_user(revision, "mine", {})
    taken = {key: text for one in ours for key, text in selector(one).items()}
    theirs = [
        made
        for number, (key, text) in enumerate(sorted(taken.items()))
        for made in of_a_user(revision, f"evil-{number}", {key: text, labels.SERVING: names_of("mine")})
    ]
    tried = [{**pod, "metadata": {**pod["metadata"], "namespace": f"r{revision}"}} for pod in pods([*ours, *theirs])]
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"r{revision}"}}]
    await server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([*spaces, *tried]))

    async def selected(expression: str) -> set[str]:
        found = await server.kubectl("get", "pods", "-n", f"r{revision}", "-l", expression, "-o", "name")
        return {line.removeprefix("pod/") for line in found.split()}

    evil = {pod["metadata"]["name"] for pod in pods(theirs) if pod["spec"]["containers"][0]["name"] == "engine"}
    led = {one["metadata"]["name"]: ",".join(f"{k}={v}" for k, v in selector(one).items()) for one in ours}
    for name, expression in led.items():
        if expression:
            found = await selected(expression)
            assert found, f"{name} selects nothing by {expression}"
            assert not found & evil, f"{name} selects {found & evil} by {expression}"
    (fence,) = [one for one in ours if one["metadata"]["name"] == "modelplane-pickers"]
    parts = fence["spec"]["podSelector"]["matchExpressions"]
    behind = await selected(",".join(p["key"] if p["operator"] == "Exists" else f"!{p['key']}" for p in parts))
    assert behind
    assert not behind & evil


def names_of(deployment: str) -> str:
    return names.replica("ml-team", deployment, "c", 0)


def of_a_user(revision: int, name: str, given: Manifest) -> Sequence[Manifest]:
    """A replica with an engine and a gang behind a picker, whose pods are to have these labels."""
    template = {"metadata": {"labels": given}, "spec": {"containers": [{"name": "engine", "image": "engine:v1"}]}}
    roles = {"one": ["Standalone"], "gang": ["Leader", "Worker"]}
    engines = [
        {
            "name": engine,
            "members": [
                {"role": role, "nodePoolName": "p", "deviceRequests": [], "template": template} for role in members
            ],
        }
        for engine, members in roles.items()
    ]
    replica = ModelReplica.parse(
        {
            "metadata": {"name": names_of(name), "namespace": "ml-team", "uid": name},
            "spec": {"clusterName": "c", "podRevision": revision, "engines": engines},
        }
    )
    found = render_model_replica(replica, Context("n", frozenset({LEADER_WORKER_SETS, EXTENSION_POLICIES})))
    assert not isinstance(found, CannotRender)
    return found


def selector(manifest: Manifest) -> dict[str, str]:
    """The labels by which something of ours finds pods."""
    found = manifest.get("spec", {}).get("selector") or {}
    return dict(found.get("matchLabels", found))
