"""A tenant names what is another's: the operator, with the chart's own permissions, does not even ask for it.

The objects are stored as if it were before their names had patterns. Today API servers refuse them, each by its field.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet.fleet import Fleet, FleetError
from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelEndpoint, ModelReplica
from tests.integration import kinds
from tests.support.hub import SYSTEM, Hub
from tests.support.loose import loose
from tests.support.permissions import ON_HUB, QUICK, accounts, as_operator, asked, audited, bring  # noqa: F401 - fixture
from tests.support.processes import REAL, operating

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

ATTACKER, VICTIM = "team-a", "team-b"
KEY, LEVEL, LOGIN = "canary-of-openai-7d2e", "canary-of-settings-91c4", "canary-of-registry-e03b"
THEIRS = (KEY, LEVEL, LOGIN)
OWN = "canary-of-the-attacker-55aa"
WAYS = (
    "../../{namespace}/{kind}/{name}",
    "..%2F..%2F{namespace}%2F{kind}%2F{name}",
    "%2e%2e/%2e%2e/{namespace}/{kind}/{name}",
    "./../../{namespace}/{kind}/{name}",
    "{name}/../../../{namespace}/{kind}/{name}",
    "..",
    ".",
    "",
)


def led(kind: str, name: str) -> Iterator[str]:
    """Names that lead to something of the victim's, or nowhere."""
    return (way.format(namespace=VICTIM, kind=kind, name=name) for way in WAYS)


def endpoints() -> Iterator[Manifest]:
    for number, name in enumerate(led("secrets", "openai")):
        ref = {"secretRef": {"name": name, "key": "key"}}
        yield kinds.endpoint(ATTACKER, f"provider-{number}", "https://inference.example.com", credentials=ref)


def deployments() -> Iterator[Manifest]:
    """What is read under one name is copied under another: each names both."""
    for number, (secret, settings, registry) in enumerate(
        zip(led("secrets", "openai"), led("configmaps", "settings"), led("secrets", "registry"), strict=True)
    ):
        yield curious(f"env-{number}", ("secretKeyRef", secret, "openai", "key"))
        yield curious(f"settings-{number}", ("configMapKeyRef", settings, "settings", "level"))
        template = kinds.pod()
        template["spec"]["imagePullSecrets"] = [{"name": registry}, {"name": "registry"}]
        yield kinds.deployment(ATTACKER, f"pull-{number}", replicas=0, engines=[kinds.engine(template=template)])


def curious(name: str, ref: tuple[str, str, str, str]) -> Manifest:
    source, elsewhere, here, key = ref
    template = kinds.pod()
    template["spec"]["containers"][0]["env"] = [
        {"name": "A", "valueFrom": {source: {"name": elsewhere, "key": key, "optional": True}}},
        {"name": "B", "valueFrom": {source: {"name": here, "key": key, "optional": True}}},
    ]
    return kinds.deployment(ATTACKER, name, replicas=0, engines=[kinds.engine(template=template)])


def replicas() -> Iterator[Manifest]:
    """Written as the operator writes them, so that nothing depends on where there is room."""
    for deployment in deployments():
        (engine,) = deployment["spec"]["template"]["spec"]["engines"]
        (member,) = engine["members"]
        request = {"name": "gpu", "deviceClassName": "gpu.nvidia.com", "count": 1}
        placed = {"nodePoolName": "l4", "deviceRequests": [request], "template": member["template"]}
        yield {
            "apiVersion": kinds.GROUP,
            "kind": "ModelReplica",
            "metadata": deployment["metadata"],
            "spec": {"clusterName": "worker-1", "engines": [{"name": "vllm", "members": [placed]}]},
        }


def clusters() -> Iterator[Manifest]:
    for number, name in enumerate(led("secrets", "openai")):
        manifest = kinds.cluster(f"borrowed-{number}")
        manifest["spec"]["cluster"]["existing"]["secretRef"] = {"name": name, "key": "key"}
        yield manifest


ATTACKS = (*endpoints(), *deployments(), *replicas(), *clusters())


def test_a_name_that_leads_to_what_is_anothers_is_not_followed(audited: Fleet, tmp_path: Path) -> None:  # noqa: F811
    hub = Hub(audited)
    hub.learn()
    for namespace in (SYSTEM, ATTACKER, VICTIM):
        hub.kubectl("create", "namespace", namespace)
    hub.kubectl("apply", "-f-", documents=accounts("hubGateway.traefik=false"))
    bring(hub, "worker-1", "own-software.yaml", named="worker-1-kubeconfig")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(as_operator(hub))
    for manifest in belongings():
        hub.apply(manifest)
    refused_today(hub)
    store_as_before(hub)

    with operating(kubeconfig, tmp_path, *QUICK, module=REAL) as operator:
        for manifest in (kinds.gateway(), *map(kinds.inference_class, kinds.POOLS), kinds.cluster("worker-1")):
            hub.apply(manifest)
        hub.says("worker-1", "Ready", "Available")
        own = {"secretRef": {"name": "mine", "key": "key"}}
        hub.apply(kinds.endpoint(ATTACKER, "own", "https://inference.example.com", credentials=own))
        everything = [{"model": name} for name in ("own", *(one["metadata"]["name"] for one in endpoints()))]
        hub.apply(kinds.service(ATTACKER, "all", *((1, chosen) for chosen in everything)))
        hub.until(lambda: OWN in found(hub, "hub", "httproutes"), "the attacker's own key to be in its route")
        hub.until(lambda: silent(hub) == [], "all objects to say which of their names is none")

        assert [one for where in ("hub", "worker-1") for one in leaked(hub, where)] == []
        assert not any(text in operator.running.command.log.read_text() for text in THEIRS)
        assert [str(right) for right, _ in asked(audited.audit("hub"), ON_HUB) if right.namespace == VICTIM] == []
        hub.learn()
        hub.kubectl("delete", "ms,md,me,mr", "--all", "-n", ATTACKER, "--timeout=120s")
        hub.kubectl("delete", "ic", "--all", "--timeout=120s")


def belongings() -> Iterator[Manifest]:
    yield kinds.secret(ATTACKER, "mine", key=OWN)
    yield kinds.secret(VICTIM, "openai", key=KEY)
    yield kinds.config_map(VICTIM, "settings", level=LEVEL)
    login = json.dumps({"auths": {"registry.example.com": {"username": "b", "password": LOGIN}}})
    yield {
        **kinds.secret(VICTIM, "registry", **{".dockerconfigjson": login}),
        "type": "kubernetes.io/dockerconfigjson",
    }


def refused_today(hub: Hub) -> None:
    """Every one of them, at the field that has the name."""
    with pytest.raises(FleetError) as error:
        hub.kubectl("apply", "-f-", documents=listed(ATTACKS))
    complaints = re.split(r'(\w+)(?:\.modelplane\.ai)? "([-a-z0-9]+)" is invalid: ', str(error.value))
    told = {tuple(complaints[at : at + 2]): complaints[at + 2] for at in range(1, len(complaints), 3)}
    for manifest in ATTACKS:
        complaint = told[manifest["kind"], manifest["metadata"]["name"]]
        assert re.search(r"\.name: Invalid value.*(should match|at least 1)", complaint, re.DOTALL)


def store_as_before(hub: Hub) -> None:
    definitions = [loose(kind) for kind in (ModelEndpoint, ModelDeployment, ModelReplica, InferenceCluster)]
    hub.kubectl("apply", "--server-side", "--force-conflicts", "-f-", documents=listed(definitions))

    def stored() -> bool:
        try:
            hub.kubectl("apply", "-f-", documents=listed(ATTACKS))
        except FleetError:  # the server takes a changed definition into use after a moment
            return False
        return True

    hub.until(stored, "the objects to be stored")


def listed(items: Iterable[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": [*items]}


def place(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def silent(hub: Hub) -> list[str]:
    """The objects that do not say which of their names is none."""
    said = {
        place(one)
        for one in yaml.load(found(hub, "hub", "me,md,mr,ic"), Loader=yaml.CSafeLoader)["items"]
        for condition in (one.get("status") or {}).get("conditions", [])
        if condition["type"] == "Synced" and ".name: String should" in condition.get("message", "")
    }
    return [place(one) for one in ATTACKS if place(one) not in said]


def found(hub: Hub, where: str, kinds_of_objects: str) -> str:
    return hub.kubectl("get", kinds_of_objects, "-A", "-oyaml", on=where)


def leaked(hub: Hub, where: str) -> list[str]:
    """The objects of a cluster that have a text of the victim's, and are not the victim's."""
    listable = hub.kubectl("api-resources", "--verbs=list", "-oname", on=where).split()
    known = ",".join(one for one in listable if not one.startswith(("componentstatuses", "events")))
    texts = {form for text in THEIRS for form in (text, base64.b64encode(text.encode()).decode())}
    return [
        f"{place(one)} on {where}"
        for one in yaml.load(found(hub, where, known), Loader=yaml.CSafeLoader)["items"]
        if (one["metadata"].get("namespace"), where) != (VICTIM, "hub")
        and any(text in json.dumps(one, default=str) for text in texts)
    ]
