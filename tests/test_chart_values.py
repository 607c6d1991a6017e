"""What may be chosen of the chart ends where it belongs, and a typing error is refused before anything is installed."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelplane_operator.settings import Settings
from scripts.chart_values import leaves, values
from tests.support.chart import ANYWHERE, CHART, NAMESPACE, helm, rendered
from tests.support.golden import Golden
from tests.support.manifests import ROOT

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

GOLDEN = Path(__file__).parent / "golden" / "chart"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("replicaCounts=2", "additional properties 'replicaCounts' not allowed"),
        ("image.repo=a", "at '/image': additional properties 'repo' not allowed"),
        ("settings.workers=4", "at '/settings': additional properties 'workers' not allowed"),
        ("settings.tenant-namespaces=a", "at '/settings': additional properties 'tenant-namespaces' not allowed"),
        ("settings.resync=none", "at '/settings/resync': 'none' does not match pattern"),
        ("settings.cluster-limits=0", "at '/settings/cluster-limits': minimum: got 0, want 0.1"),
        ("settings.log-level=loud", "at '/settings/log-level': value must be one of 'debug', 'info'"),
        ("settings.helm-memory=5Xi", "at '/settings/helm-memory'"),
        ("replicaCount=two", "at '/replicaCount': got string, want integer"),
        ("crds.enabled=maybe", "at '/crds/enabled': got string, want boolean"),
        ("image.digest=sha256:0f", "at '/image/digest'"),
        ("extraVolumes[0].emptyDir=x", "at '/extraVolumes/0': missing property 'name'"),
        ("tolerations[0].keys=x", "at '/tolerations/0': additional properties 'keys' not allowed"),
        ("tenantNamespaces=team", "at '/tenantNamespaces'"),
        ("admission.routes=Mine", "at '/admission/routes'"),
        ("serviceAccount.create=false", "serviceAccount.name is missing"),
    ],
)
async def test_a_typing_error_is_refused_and_named(value: str, told: str) -> None:
    chosen = (f"--set={ANYWHERE}", f"--set={value}")
    said = await helm("template", "mp", str(CHART), f"--namespace={NAMESPACE}", *chosen, succeeds=False)

    assert told in said


async def test_every_setting_may_be_given_as_the_operator_reads_it() -> None:
    """Numbers too, of which Helm makes floats that it writes as 2e+07 by itself."""
    said = {"helm-memory": 500000000, "lease-duration": 30, "resync": 12.5, "cluster-limits": 2}
    container = operator(await rendered(*(f"settings.{name}={value}" for name, value in said.items())))
    flags = dict(argument.removeprefix("--").partition("=")[::2] for argument in container["args"][1:])

    settings = Settings.read({name.replace("-", "_"): value for name, value in flags.items()}, {})
    assert (settings.helm_memory, settings.cluster_limits) == (500000000, 2)
    assert (settings.lease_duration, settings.resync) == (30, 12.5)


def operator(objects: list[Manifest], name: str = "modelplane-operator") -> Manifest:
    """The container of the operator."""
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", name)]
    return found["spec"]["template"]["spec"]["containers"][0]


def test_every_value_is_used_by_a_template() -> None:
    used = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())

    def is_used(path: str) -> bool:
        """Or the whole that it is a part of, which a template may hand on."""
        wholes = "|".join(map(re.escape, accumulate(path.split("."), "{}.{}".format)))
        return re.search(rf"\.Values\.({wholes})(?![\w.])", used) is not None

    assert [path for path, _ in leaves(values()) if not is_used(path)] == []


async def test_the_name_of_the_account_holds_everywhere() -> None:
    objects = await rendered("hubGateway.envoyGateway=true", "llmInferences.onHub.a={b}", "serviceAccount.name=models")

    assert "system:serviceaccount:modelplane-system:modelplane-operator" not in {
        name for one in objects for name in re.findall(r"system:[-:a-z]+", yaml.safe_dump(one))
    }
    accounts = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
    assert accounts == {"models", "modelplane-operator-hub-gateway", "modelplane-keys", "traefik"}
    bound = {
        subject["name"] for one in objects if one["kind"].endswith("Binding") for subject in one.get("subjects", ())
    }
    assert bound == accounts
    (pods,) = [
        one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", "modelplane-operator")
    ]
    assert pods["spec"]["template"]["spec"]["serviceAccountName"] == "models"


async def test_an_account_of_ones_own_is_bound_and_not_made() -> None:
    objects = await rendered("serviceAccount.create=false", "serviceAccount.name=mine")

    assert "mine" not in {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
    assert {"kind": "ServiceAccount", "name": "mine", "namespace": NAMESPACE} in [
        subject for one in objects for subject in one.get("subjects", ())
    ]


async def test_labels_of_ones_own_are_on_everything_and_on_all_pods() -> None:
    objects = await rendered("commonLabels.team=platform", "crds.enabled=true")

    assert {one["kind"] for one in objects} >= {"CustomResourceDefinition", "Deployment", "ServiceAccount"}
    for one in objects:
        assert one["metadata"]["labels"]["team"] == "platform", one["metadata"]["name"]
        if one["kind"] == "Deployment":
            assert one["spec"]["template"]["metadata"]["labels"]["team"] == "platform"


async def test_definitions_are_those_of_the_models_and_outlive_the_release() -> None:
    def ours(objects: list[Manifest]) -> dict[str, Manifest]:
        found = {one["metadata"]["name"]: one for one in objects if one["kind"] == "CustomResourceDefinition"}
        return {name: one for name, one in found.items() if not name.startswith("questions.")}

    kept, none = [ours(await rendered(f"crds.enabled={enabled}")) for enabled in ("true", "false")]
    models = {
        one["metadata"]["name"]: one["spec"]
        for one in map(yaml.safe_load, map(Path.read_text, (ROOT / "crds").iterdir()))
    }
    assert {name: one["spec"] for name, one in kept.items()} == models
    assert {one["metadata"]["annotations"]["helm.sh/resource-policy"] for one in kept.values()} == {"keep"}
    assert none == {}


async def test_alerts_link_to_their_place_in_the_page() -> None:
    base = "https://docs.example.com/alerts.html#"
    (rules,) = [
        one
        for one in await rendered("prometheusRule.enabled=true", f"prometheusRule.runbooks={base}")
        if one["kind"] == "PrometheusRule"
    ]
    found = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]

    assert len(found) > 10
    for rule in found:
        assert rule["annotations"]["runbook_url"] == base + rule["alert"].lower()


async def test_the_dashboard_is_in_a_config_map_as_it_is_in_its_file() -> None:
    (found,) = [one for one in await rendered("grafanaDashboard.enabled=true") if one["kind"] == "ConfigMap"]

    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"]["modelplane-operator.json"] == (CHART / "files/dashboard.json").read_text().rstrip()


async def test_roles_for_people_come_to_kubernetes_own_by_their_labels() -> None:
    roles = {one["metadata"]["name"]: one for one in await rendered() if one["kind"] == "ClusterRole"}
    come = {
        name.removeprefix("modelplane-operator-"): sorted(
            label.rpartition("-")[2] for label in one["metadata"]["labels"] if "aggregate-to" in label
        )
        for name, one in roles.items()
    }

    assert {name: to for name, to in come.items() if to} == {
        "view": ["admin", "edit", "view"],
        "edit": ["admin", "edit"],
    }
    assert come["platform"] == come["hardware"] == []


PREFERRED = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
ALL = (
    *("commonLabels.team=platform", "imagePullSecrets[0].name=registry", "hubGateway.envoyGateway=true"),
    *("hubGateway.metallb=true", "tenantNamespaces={team-a,team-b}", "llmInferences.onHub.team-a={models}"),
    *("llmInferences.hostsOnHub.team-a={*.example.com}", "settings.resync=4", "extraEnv[0].name=HTTPS_PROXY"),
    *("extraEnv[0].value=http://proxy:3128", "extraVolumes[0].name=ca", "extraVolumes[0].secret.secretName=ca"),
    *("extraVolumeMounts[0].name=ca", "extraVolumeMounts[0].mountPath=/etc/ca", "nodeSelector.pool=system"),
    *("tolerations[0].key=system", "tolerations[0].operator=Exists", "priorityClassName=high"),
    r"serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn:aws:iam::1:role/mp",
    *(f"{PREFERRED}.weight=1", f"{PREFERRED}.preference.matchExpressions[0].key=system"),
    f"{PREFERRED}.preference.matchExpressions[0].operator=Exists",
    *("podAnnotations.a=b", "podLabels.c=d", "admission.routes=OwnPrefix", "admission.writers.users={root}"),
    *("networkPolicy.from[0].podSelector.matchLabels.app=prometheus", "serviceMonitor.enabled=true"),
    "networkPolicy.admissionFrom[0].ipBlock.cidr=10.0.0.2/32",
    *("serviceMonitor.labels.release=prometheus", "prometheusRule.enabled=true", "settings.lease-duration=30"),
)


@pytest.mark.parametrize(("name", "values"), [("default", ()), ("everything", ALL)])
async def test_what_helm_makes_of_the_chart_is_what_was_reviewed(
    name: str, values: tuple[str, ...], golden: Golden
) -> None:
    chosen = [f"--set={value}" for value in ("crds.enabled=false", ANYWHERE, *values)]
    said = await helm("template", "mp", str(CHART), f"--namespace={NAMESPACE}", *chosen)

    golden.holds(GOLDEN / f"{name}.yaml", said)


async def test_lint_has_nothing_to_say() -> None:
    said = await helm("lint", "--strict", str(CHART), f"--namespace={NAMESPACE}")

    assert "0 chart(s) failed" in said
    assert not re.search("WARNING|ERROR", said)


@pytest.mark.parametrize("values", [(), ("tenantNamespaces={team}",)])
async def test_no_right_of_the_chart_is_all_there_is(values: tuple[str, ...]) -> None:
    """By default: MetalLB's own role says `*` of one of its kinds, and is given away with hubGateway.metallb alone."""
    objects = await rendered(*values)
    rules = [rule for one in objects for rule in one.get("rules", ()) if one["kind"] in {"ClusterRole", "Role"}]

    assert len(rules) > 40
    for rule in rules:
        assert not any("*" in rule.get(part, ()) for part in ("apiGroups", "resources", "verbs")), rule
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & {*rule["verbs"]}, rule
    given = {one["roleRef"]["name"] for one in objects if "roleRef" in one}
    assert given <= {one["metadata"]["name"] for one in objects if one["kind"] in {"ClusterRole", "Role"}}
