"""The chart: a real server takes it, and with the permissions that it gives the operator can do all of its work."""

from __future__ import annotations

import re
import shlex
import signal
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeloop.resource import of
from localfleet import binaries
from modelplane_operator.api import KINDS, names
from modelplane_operator.ask.admission.rules.configuration import find_differences
from modelplane_operator.settings import Settings
from tests.support.api import Api
from tests.support.chart import ANYWHERE, CHART, NAMESPACE, helm, permissions, rendered
from tests.support.manifests import ROOT
from tests.support.processes import REAL, eventually, operating

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OWN = "hubGateway.traefik=false"
"""Without the permissions for the hub gateway's charts, which would hide that one of the others is missing."""
BY_ENVOY_GATEWAY = "hubGateway.envoyGateway=true"
DIGEST = f"sha256:{'0f' * 32}"
EVERYTHING = ("serviceMonitor.enabled=true", "settings.resync=4", f"image.digest={DIGEST}", "extraEnv[0].name=A")


@pytest.fixture(scope="module")
async def server(api: Api) -> Api:
    """The API server with the namespace that the operator lives in, which takes no pods with privileges."""
    await api.define(binaries.ensure("gateway-api-crds")["gateway-api-crds"])
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(home))
    return api


async def test_a_server_takes_the_chart_and_its_pods(server: Api) -> None:
    said = await helm(
        *("install", "mp", str(CHART), f"--namespace={NAMESPACE}", f"--set={ANYWHERE}", "--dry-run=server"),
        "--take-ownership",
        kubeconfig=server.server.kubeconfig,
    )
    pods = [pod(one) for one in await rendered() if one["kind"] == "Deployment"]

    assert "STATUS: pending-install" in said
    assert "WARNING: image.repository is still modelplane-operator" in said  # its notes: no registry has such an image
    objects = [one for one in await rendered() if one["kind"] not in {"ServiceMonitor", "Namespace"}]
    await server.kubectl("create", "namespace", "traefik-system")
    tried = await server.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "-f", "-"), stdin=yaml.safe_dump_all([*objects, *pods])
    )
    assert len(tried.splitlines()) == len(objects) + len(pods)


def pod(deployment: Manifest) -> Manifest:
    """One of a Deployment's."""
    template = deployment["spec"]["template"]
    metadata = {**template["metadata"], "name": f"trial-{deployment['metadata']['name']}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


async def test_elsewhere_than_in_its_namespace_it_says_where_it_belongs() -> None:
    said = await helm("template", "mp", str(CHART), "--namespace=default", f"--set={ANYWHERE}", succeeds=False)

    assert "install it there (--namespace modelplane-system --create-namespace)" in said


async def test_every_value_ends_where_it_belongs() -> None:
    found = await rendered(*EVERYTHING, "apiKeys.enabled=false")
    objects = {one["kind"]: one for one in found}
    container, other = (
        one["spec"]["template"]["spec"]["containers"][0]
        for one in sorted(
            (one for one in found if one["kind"] == "Deployment"), key=lambda one: one["metadata"]["name"]
        )
    )

    assert other["args"] == [
        "hub-gateway",
        "--listen=:8080",
        "--resync=4",
    ]
    assert container["image"] == f"modelplane-operator@{DIGEST}"
    hydrates = f"--hydrator-image=modelplane-operator@{DIGEST}"
    assert container["args"] == [
        "run",
        "--listen=:8080",
        "--admission-listen=:9443",
        hydrates,
        "--hub-gateway=apart",
        "--resync=4",
    ]
    assert objects["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == "http"
    flags = {name.removeprefix("--").replace("-", "_"): value for name, _, value in map(split, container["args"][1:])}
    assert Settings.read(flags, {}).listen == ("", 8080)
    writes, questions = objects["ValidatingWebhookConfiguration"]["webhooks"]
    assert (writes["failurePolicy"], writes["timeoutSeconds"]) == ("Ignore", 2)
    assert questions["rules"][0]["resources"] == ["questions"]  # nobody else has to wait for it, or fails without
    groups = {"modelplane.ai", "inference.devopstoolkit.ai"}
    assert find_differences(objects["ValidatingWebhookConfiguration"], groups, names.ADMISSION_SERVICE) == ()
    assert "ValidatingWebhookConfiguration" not in {one["kind"] for one in await rendered("admission.webhook=false")}
    assert "--admission-listen=:9443" not in await arguments("admission.webhook=false")
    off = await rendered("networkPolicy.enabled=false")
    assert {"NetworkPolicy", "ServiceMonitor"} & {one["kind"] for one in off} == set()
    assert "--hub-gateway=own" in await arguments(OWN)
    assert "--hub-gateway=apart" in await arguments(OWN, BY_ENVOY_GATEWAY)
    assert "--tenant-namespaces=a,b" in await arguments("tenantNamespaces={b,a,b}")
    on_hub = await arguments(
        "llmInferences.onHub.team={models,more}", r"llmInferences.hostsOnHub.team={*.team\.example}"
    )
    assert {"--llm-inferences-on-hub=team=models,team=more", "--llm-inference-hosts-on-hub=team=*.team.example"} <= {
        *on_hub
    }


def reaches(policy: Manifest, address: str, port: int) -> bool:
    """Whether a policy lets its pods connect to an address that is no pod's."""

    def block(one: Manifest) -> bool:
        told = one.get("ipBlock", {"cidr": "255.255.255.255/32"})
        out = any(ip_address(address) in ip_network(left) for left in told.get("except", ()))
        return ip_address(address) in ip_network(told["cidr"]) and not out

    return any(
        (not rule.get("to") or any(map(block, rule["to"])))
        and (not rule.get("ports") or any(one["port"] == port for one in rule["ports"]))
        for rule in policy["spec"]["egress"]
    )


METADATA = ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fe80::a9fe:a9fe")


async def test_gateways_connect_to_the_world_and_where_the_values_say_and_never_to_metadata() -> None:
    def of_gateways(objects: list[Manifest]) -> dict[str, Manifest]:
        found = [one for one in objects if one["metadata"]["name"] == "modelplane-operator-hub-gateway"]
        policies = (one for one in found if one["kind"] == "NetworkPolicy")
        return {where: one for one in policies if (where := one["metadata"]["namespace"]) != NAMESPACE}

    usual = of_gateways(await rendered(BY_ENVOY_GATEWAY))
    assert usual.keys() == {"traefik-system", "envoy-gateway-system"}
    (narrow,) = of_gateways(await rendered("networkPolicy.hubGateway.private[0].cidr=10.1.0.0/16")).values()
    for policy in (*usual.values(), narrow):
        assert [reaches(policy, one, 443) for one in ("34.55.100.10", "2001:db8::1", "10.1.2.3")] == [True] * 3
        assert [one for one in METADATA if reaches(policy, one, 80)] == []
    assert [reaches(one, "10.9.9.9", 80) for one in (usual["traefik-system"], narrow)] == [True, False]
    inward = ("192.168.1.1", "fd12::1", "64:ff9b:1::1", "64:ff9b::10.9.9.9", "2002:a00:1::", "127.0.0.1")
    assert [one for one in inward if reaches(narrow, one, 443)] == []


async def arguments(*values: str) -> list[str]:
    found = [one for one in await rendered(*values) if one["kind"] == "Deployment"]
    (deployment,) = (one for one in found if one["metadata"]["name"] == "modelplane-operator")
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def split(argument: str) -> tuple[str, str, str]:
    return argument.partition("=")


async def test_the_rights_cover_our_kinds_and_name_nothing_that_gives_all() -> None:
    objects = await rendered()
    rules = [rule for one in objects if one["kind"] in {"ClusterRole", "Role"} for rule in one["rules"]]
    granted = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert not {"*", "escalate", "bind", "impersonate", "deletecollection"} & {verb for *_, verb in granted}
    assert not any("*" in {group, resource} for group, resource, _ in granted)
    for kind in map(of, KINDS):
        assert {(kind.group, kind.plural, verb) for verb in ("get", "list", "watch")} <= granted
        assert (kind.group, f"{kind.plural}/status", "update") in granted


@pytest.mark.parametrize(
    ("values", "operator", "gateway", "traefik"),
    [
        ((OWN,), {"get"}, set(), set()),
        (("hubGateway.traefik=true",), {"get"}, set(), {"list", "watch"}),
        ((OWN, BY_ENVOY_GATEWAY), {"get"}, {"get", "list", "watch"}, set()),  # Envoy Gateway's own role has these
        (("tenantNamespaces={team}",), set(), set(), set()),
    ],
)
async def test_who_may_do_what_with_secrets_everywhere(
    values: tuple[str, ...], operator: set[str], gateway: set[str], traefik: set[str]
) -> None:
    assert await on_secrets_everywhere("modelplane-operator", *values) == operator
    assert await on_secrets_everywhere("modelplane-operator-hub-gateway", *values) == gateway
    assert await on_secrets_everywhere("traefik", *values) == traefik


async def on_secrets_everywhere(account: str, *values: str) -> set[str]:
    """The verbs on the Secrets of all namespaces that the chart gives an account."""
    objects = await rendered(*values)
    bound = {
        one["roleRef"]["name"]
        for one in objects
        if one["kind"] == "ClusterRoleBinding" and account in {subject["name"] for subject in one["subjects"]}
    }
    roles = [one for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"] in bound]
    return {verb for one in roles for rule in one["rules"] if "secrets" in rule["resources"] for verb in rule["verbs"]}


async def test_secrets_of_all_namespaces_are_read_only_where_somebody_said_so() -> None:
    said = await helm("template", "mp", str(CHART), f"--namespace={NAMESPACE}", succeeds=False)

    assert "tenantNamespaces is missing: a list of the namespaces that models are in, or all" in said


async def test_the_command_of_the_readme_says_all_that_has_to_be_said() -> None:
    (typed,) = re.findall(r"^(helm install .*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    _, _, name, chart, *values = shlex.split(typed.replace("\\\n", ""), comments=True)

    assert await helm("template", name, str(ROOT / chart), *values)


@pytest.mark.parametrize("said", ["team", "{}", "{Team}", "{a/b}", "{all}", "{team,all}"])
async def test_namespaces_of_tenants_are_all_or_named(said: str) -> None:
    said = await helm(
        *("template", "mp", str(CHART), f"--namespace={NAMESPACE}", f"--set=tenantNamespaces={said}"), succeeds=False
    )

    assert "tenantNamespaces" in said


async def test_with_these_rights_the_operator_is_refused_nothing(server: Api, tmp_path: Path) -> None:
    """The operator's own kinds at work on the examples, as the chart's service account."""
    granted = yaml.safe_dump_all(await permissions(OWN))
    await server.kubectl("apply", "--server-side", "-f", "-", stdin=granted)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(await as_operator(server))
    with operating(kubeconfig, tmp_path, module=REAL) as operator:
        await operator.leads()
        for namespace in ("ml-team", "platform"):
            await server.kubectl("create", "namespace", namespace)
        for examples in ("start", "recipes", "classes", "clusters", "operator", "infrastructure", "demo/cache.yaml"):
            await server.kubectl("apply", "--server-side", "-f", str(ROOT / "examples" / examples))
        await eventually(lambda: settled(server), bool, "all that has a controller to be judged")
        _, metrics = await operator.page("/metrics")
        refused = [line for line in metrics.splitlines() if 'outcome="Forbidden"' in line]
        operator.signal(signal.SIGTERM)
        assert await operator.ended(60.0) == 0
    await server.kubectl("delete", "-f", "-", stdin=granted)  # the chart itself is to be installed by another test

    assert refused == []
    assert re.findall("forbidden.*", operator.running.command.log.read_text()) == []


async def as_operator(server: Api) -> str:
    """A kubeconfig of the chart's service account."""
    token = (await server.kubectl("-n", NAMESPACE, "create", "token", "modelplane-operator")).strip()
    config = yaml.safe_load(server.server.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    return yaml.safe_dump(config)


async def settled(server: Api) -> bool:
    """Whether every object of these kinds has been judged by its controller."""
    kinds = ("inferencegateways", "inferenceclasses", "inferenceclusters", "modeldeployments", "modelservices")
    found = yaml.safe_load(await server.kubectl("get", ",".join(kinds), "-A", "-o", "yaml"))["items"]
    judged = [{one["type"] for one in item.get("status", {}).get("conditions", ())} for item in found]
    return all("Synced" in conditions for conditions in judged)


async def test_tenants_may_write_what_tenants_write_and_nothing_else() -> None:
    """The roles name each namespaced kind of models; replicas are the operator's to write."""
    found = {one["metadata"]["name"]: one for one in await rendered() if one["kind"] == "ClusterRole"}
    edit, view = (found[f"modelplane-operator-{name}"]["rules"][0] for name in ("edit", "view"))
    ours = {kind.definition.plural for kind in KINDS if kind.definition.plural.startswith("model")}

    assert set(edit["resources"]) == {*ours - {"modelreplicas"}, "modeldeployments/scale"}
    assert set(view["resources"]) == {*ours, "modeldeployments/scale"}
    assert not {name for name in found if name.endswith(("-view", "-edit", "-platform", "-hardware"))} & {
        one["metadata"]["name"] for one in await rendered("roles.create=false")
    }
