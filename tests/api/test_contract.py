"""The CRDs say what the contract says: the same fields, defaults, bounds and rules, no more and no fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from modelplane_operator.api import KINDS, Kind, crd
from tests.api.contract import contracts, rules_in
from tests.support.manifests import ROOT, Manifest

BOUNDS = (
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties", "pattern", "enum", "format",
)  # fmt: skip

KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)

# kind, plural, short name, scope, the columns of its own
DEFINITIONS = """
InferenceGateway  inferencegateways  ig    Cluster     GATEWAY=.spec.backend ADDRESS=.status.address
InferenceClass    inferenceclasses   icl   Cluster     CLUSTERS=.status.clusters NODES=.status.nodes
InferenceCluster  inferenceclusters  ic    Cluster     SOURCE=.spec.cluster.source GATEWAY=.status.gateway.address \
    POOLS=.status.pools NODES=.status.nodes REPLICAS=.status.replicas VERSION=.status.observed.version \
    TAINTS=.status.taints
ModelDeployment   modeldeployments   md    Namespaced  REPLICAS=.status.replicas.ready DESIRED=.spec.replicas \
    PLACED=.status.replicas.total MODEL=.status.model
ModelReplica      modelreplicas      mr    Namespaced  CLUSTER=.spec.clusterName NODES=.status.nodes POOL=.status.pool
ModelEndpoint     modelendpoints     me    Namespaced  URL=.spec.url STATE=.status.conditions[?(@.type=='Ready')].reason
ModelService      modelservices      ms    Namespaced  ADDRESS=.status.address ENDPOINTS=.status.endpointCount
ModelCache        modelcaches        mc    Namespaced  SOURCE=.status.summary.source SIZE=.status.summary.size \
    PHASE=.status.conditions[?(@.type=='ArtifactReady')].reason STAGED=.status.summary.ready \
    PROGRESS=.status.summary.progress
ServingStack      servingstacks      ss    Namespaced  GATEWAY=.status.gateway.address ROLLOUT=.status.rollout.phase
GKECluster        gkeclusters        gke   Namespaced  REGION=.spec.region
EKSCluster        eksclusters        eks   Namespaced  REGION=.spec.region
AKSCluster        aksclusters        aks   Namespaced  LOCATION=.spec.location
NebiusCluster     nebiusclusters     mk8s  Namespaced
VultrCluster      vultrclusters      vke   Namespaced  REGION=.spec.region
LLMInference      llminferences      llmi  Namespaced  MODEL=.spec.model GPU=.spec.gpu URL=.status.url
"""


def facts(path: str, schema: Manifest, *, required: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema in the words of the contract."""
    inner = schema.get("items") or schema.get("additionalProperties")
    field = {
        "type": schema["type"],
        **({"required": True} if required else {}),
        **{key: schema[key] for key in ("default", *BOUNDS) if key in schema},
    }
    if inner:
        field["of"] = inner["type"]
        each = {key: inner[key] for key in BOUNDS if key in inner}
        field |= {"each": each} if each else {}
    match schema.get("x-kubernetes-list-type"):
        case "map":
            field["keys"] = schema["x-kubernetes-list-map-keys"]
        case None:
            pass
        case other:
            field["list"] = other
    yield path, field
    below = f"{path}[]" if "items" in schema else f"{path}{{}}" if inner else path
    of = inner or schema
    for name, child in of.get("properties", {}).items():
        if name not in ("crossplane", "conditions"):
            yield from facts(f"{below}.{name}", child, required=name in of.get("required", ()))


def described(path: str, schema: Manifest) -> Iterator[str]:
    """The fields without a description."""
    for name, child in schema.get("properties", {}).items():
        if not child.get("description"):
            yield f"{path}.{name}"
        yield from described(f"{path}.{name}", child)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if inner:
            yield from described(f"{path}[]", inner)


@KIND
def test_fields_are_those_of_the_contract(kind: Kind) -> None:
    properties = crd.schema(kind)["properties"]
    found = dict(facts("spec", properties["spec"], required=True)) | dict(
        facts("status", properties["status"], required=False)
    )

    assert found == contracts()[kind.definition.kind].fields


@KIND
def test_rules_of_the_contract_are_there(kind: Kind) -> None:
    found = {(path, rule["rule"]) for path, rule in rules_in(crd.schema(kind))}
    wanted = {(path, rule) for path, of in contracts()[kind.definition.kind].rules.items() for rule in of}

    assert wanted - found == set()


@KIND
def test_every_field_is_described(kind: Kind) -> None:
    properties = crd.schema(kind)["properties"]

    assert [*described("spec", properties["spec"]), *described("status", properties["status"])] == []


@KIND
def test_every_kind_takes_what_crossplane_put_there(kind: Kind) -> None:
    spec = crd.schema(kind)["properties"]["spec"]["properties"]["crossplane"]
    item = spec["properties"]["resourceRefs"]["items"]

    assert set(spec["properties"]) == {
        "compositionRef",
        "compositionSelector",
        "compositionRevisionRef",
        "compositionRevisionSelector",
        "compositionUpdatePolicy",
        "resourceRefs",
    }
    assert spec["properties"]["compositionUpdatePolicy"]["enum"] == ["Automatic", "Manual"]
    assert item["required"] == ["apiVersion", "kind"]
    assert ("namespace" in item["properties"]) == (kind.definition.scope == "Cluster")


@pytest.mark.parametrize("row", DEFINITIONS.strip().splitlines(), ids=lambda row: row.split()[0])
def test_definition_is_the_one_users_know(row: str) -> None:
    name, plural, short, scope, *columns = row.split()
    (kind,) = (kind for kind in KINDS if kind.definition.kind == name)
    spec = crd.definition(kind)["spec"]
    (version,) = spec["versions"]
    group = (
        "infrastructure.modelplane.ai"
        if name.endswith("Stack") or name[:3] in {"GKE", "EKS", "AKS", "Neb", "Vul"}
        else "inference.devopstoolkit.ai"
        if name == "LLMInference"
        else "modelplane.ai"
    )

    assert crd.definition(kind)["metadata"]["name"] == f"{plural}.{group}"
    assert (spec["group"], spec["scope"]) == (group, scope)
    assert spec["names"] == {
        "kind": name,
        "listKind": f"{name}List",
        "plural": plural,
        "singular": name.lower(),
        "shortNames": [short],
        "categories": ["crossplane", "modelplane"],
    }
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert [f"{column['name']}={column['jsonPath']}" for column in version["additionalPrinterColumns"]] == [
        *columns,
        "SYNCED=.status.conditions[?(@.type=='Synced')].status",
        "READY=.status.conditions[?(@.type=='Ready')].status",
        "AGE=.metadata.creationTimestamp",
        *(["SUMMARY=.status.summary"] if name != "ModelCache" else []),
        "MESSAGE=.status.conditions[?(@.type=='Ready')].message",
    ]
    assert [column["name"] for column in version["additionalPrinterColumns"] if column.get("priority")] == [
        *(["MODEL"] if name == "ModelDeployment" else []),
        *(["SUMMARY"] if name != "ModelCache" else []),
        "MESSAGE",
    ]
    assert version["schema"]["openAPIV3Schema"]["required"] == ["spec"]
    assert version["schema"]["openAPIV3Schema"]["properties"]["metadata"]["properties"]["name"]["maxLength"] == 63


def test_only_deployments_scale() -> None:
    scales = {
        kind.definition.kind: crd.definition(kind)["spec"]["versions"][0]["subresources"].get("scale") for kind in KINDS
    }

    assert {kind: scale for kind, scale in scales.items() if scale} == {
        "ModelDeployment": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas.total",
            "labelSelectorPath": ".status.selector",
        }
    }


def test_the_chart_carries_the_same_definitions() -> None:
    ours = {file.name: file.read_text() for file in (ROOT / "crds").glob("*.yaml")}
    charts = {file.name: file.read_text() for file in (ROOT / "charts/modelplane-operator/files/crds").glob("*.yaml")}

    assert len(ours) == len(KINDS)
    assert charts == ours
