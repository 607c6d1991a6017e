"""The operator with Helm: a cluster with nothing on it gets all that it needs, serves, and is left as it was."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localfleet.charts import pack, stand_in
from localfleet.fleet import Fleet, Options
from modelplane_operator.api import labels
from modelplane_operator.api.serving_stack import Versions
from modelplane_operator.clusters.stack.charts import STACK
from modelplane_operator.kinds import kinds
from modelplane_operator.settings import Settings
from tests.support.existing import CLASS, OPEN, cluster, operating, replica
from tests.support.helm import noted_helm
from tests.support.hub import SYSTEM, Hub
from tests.support.permissions import (
    HUB_PERMISSIONS,
    OF_STACKS,
    ON_CLUSTERS,
    ON_HUB,
    accounts,
    as_operator,
    bring,
    idle,
    refused,
)

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

TEAM = "team"
COPIES = ("-n", f"modelplane-{TEAM}")
DEADLINE = 300.0  # eight charts, on a machine that has other things to do


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Fleet]:
    """A hub and a cluster that has everything but software."""
    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.up(Options(workers=1, data_plane=False, audit=True))
        yield fleet
    finally:
        fleet.down()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for one in STACK:
        pack(mirror, one.chart, one.version(Versions()), stand_in(one.chart))
    helm = noted_helm(tmp_path)
    return Settings(
        listen=("127.0.0.1", 0),
        helm=str(helm),
        chart_mirror=str(mirror),
        chart_digests="ignored",
        hub_gateway="own",
    )


def test_a_cluster_gets_its_software_serves_and_is_left_as_it_was(
    bare: Fleet, settings: Settings, tmp_path: Path
) -> None:
    hub = Hub(bare)
    hub.learn()
    for namespace in (SYSTEM, TEAM):
        hub.kubectl("create", "namespace", namespace)
    hub.kubectl("apply", "-f-", documents=accounts("hubGateway.traefik=false"))
    bring(hub, "worker-1", "with-helm.yaml", named="worker-1")
    before = namespaces(hub)
    with operating(bare, settings, kinds, kubeconfig=as_operator(hub)):
        comes(hub)
        copies_a_secret(hub)
    versions = versions_of_secrets(hub)
    runs = (tmp_path / "runs").read_text()
    with operating(bare, settings, kinds, kubeconfig=as_operator(hub)):
        hub.kubectl("annotate", "mr", "m", "-n", TEAM, "example.com/look=again")
        restores_a_secret(hub)
        after = versions_of_secrets(hub)
        assert {name for name in after if after[name] != versions.get(name)} == {copy_of_token(hub)["metadata"]["name"]}
        assert (tmp_path / "runs").read_text() == runs, "a restart installs nothing anew"
        goes(hub)
    assert namespaces(hub) == before
    assert hub.kubectl("get", "secret", "-A", "-l", "owner=helm", "-oname", on="worker-1") == ""
    assert hub.kubectl("get", "gatewayclass", "-oname", on="worker-1") == ""
    for name, user in (("hub", ON_HUB), ("worker-1", ON_CLUSTERS)):
        assert refused(bare.audit(name), user) == []
    assert not set(OF_STACKS) & set(idle(bare.audit("hub"), ON_HUB, HUB_PERMISSIONS, {}))


def comes(hub: Hub) -> None:
    hub.apply(OPEN)
    hub.apply(CLASS)
    hub.apply(cluster("worker-1"))
    hub.says("worker-1", "BackendReady", "Installing: ServingStack modelplane-system/worker-1-serving-stack-")
    hub.says("worker-1", "Ready", "Available", seconds=DEADLINE)
    status = (hub.get("ic", "worker-1") or {})["status"]
    (stack,) = json.loads(hub.kubectl("get", "servingstack", "-A", "-ojson"))["items"]
    assert status["gateway"]["address"] == stack["status"]["gateway"]["address"]
    assert stack["metadata"]["ownerReferences"][0]["name"] == "worker-1"
    assert {one["state"] for one in stack["status"]["components"]} == {"Deployed"}


def copies_a_secret(hub: Hub) -> None:
    """What engines name is copied beside Helm's own Secrets, of which only the metadata are watched."""
    hub.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": TEAM}, "data": TOKEN})
    asked = replica("worker-1", TEAM)
    container = asked["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}}]
    hub.apply(asked)
    hub.until(lambda: bool(copies(hub)), "the Secret to be copied")
    assert copy_of_token(hub)["data"] == TOKEN


TOKEN = {"token": base64.b64encode(b"hf_123").decode()}


def restores_a_secret(hub: Hub) -> None:
    """Although its content is not watched, the copy is known to be another's when somebody has changed it."""
    name = copy_of_token(hub)["metadata"]["name"]
    hub.kubectl("patch", "secret", name, *COPIES, '-p={"data":{"token":"eA=="}}', on="worker-1")
    hub.until(lambda: copy_of_token(hub)["data"] == TOKEN, "the copy to be as it was")


def goes(hub: Hub) -> None:
    hub.kubectl("delete", "mr", "m", "-n", TEAM, "--wait=false")
    hub.kubectl("delete", "ic", "worker-1", "--wait=false")
    hub.says(
        "worker-1",
        "Ready",
        "Deleting: The software of cluster worker-1 is being uninstalled: ServingStack",
        seconds=DEADLINE,
    )
    hub.until(lambda: hub.get("ic", "worker-1") is None, "the cluster to go", seconds=DEADLINE)
    assert hub.kubectl("get", "servingstack", "-A", "-oname") == ""


def copies(hub: Hub) -> list[Manifest]:
    found = hub.kubectl("get", "secret", *COPIES, "-l", f"{labels.OWNER_KIND}=ModelReplica", "-ojson", on="worker-1")
    return json.loads(found)["items"]


def copy_of_token(hub: Hub) -> Manifest:
    (copy,) = copies(hub)
    return copy


def versions_of_secrets(hub: Hub) -> dict[str, str]:
    """Of Helm's records and of copies."""
    return {one["name"]: one["resourceVersion"] for one in hub.metadata("secrets", labels.OWNER_UID, on="worker-1")}


def namespaces(hub: Hub) -> set[str]:
    return set(hub.kubectl("get", "namespace", "-oname", on="worker-1").split())


def test_a_stack_that_no_cluster_has_is_installed_and_goes(bare: Fleet, settings: Settings) -> None:
    """An administrator makes one alone: to try another version of a part, say, before a cluster is brought."""
    hub = Hub(bare)
    hub.learn()
    hub.kubectl("create", "namespace", SYSTEM)
    before = namespaces(hub)
    with operating(bare, settings, kinds):
        hub.apply(OPEN)
        hub.apply(ALONE)
        hub.until(lambda: "Secret modelplane-system/worker-1 does not exist" in conditions(hub), "what is missing")
        hub.secret("worker-1")
        hub.until(lambda: '"reason":"Available"' in conditions(hub), "the stack to be ready", seconds=DEADLINE)
        hub.kubectl("delete", "servingstack", "alone", "-n", SYSTEM, f"--timeout={DEADLINE:g}s")
    assert namespaces(hub) == before


ALONE: Manifest = {
    "apiVersion": "infrastructure.modelplane.ai/v1alpha1",
    "kind": "ServingStack",
    "metadata": {"name": "alone", "namespace": SYSTEM},
    "spec": {
        "secrets": [{"type": "Kubeconfig", "name": "worker-1", "key": "kubeconfig"}],
        "components": [{"name": "prometheus", "enabled": False}],
    },
}


def conditions(hub: Hub) -> str:
    found = hub.get("servingstack", "alone", SYSTEM) or {}
    return json.dumps(found.get("status", {}).get("conditions", []), separators=(",", ":"))
