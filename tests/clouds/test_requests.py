"""Every request by which the example of a cluster is made and deleted, and that the cloud's SDK knows each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from google.cloud import compute_v1
from google.cloud.container_v1.types import cluster_service

from modelplane_operator.api import InferenceClass, InferenceCluster
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.clouds.decide import Situation, decide
from modelplane_operator.clouds.eks import changes as aws
from modelplane_operator.clouds.eks import render as eks
from modelplane_operator.clouds.eks.render import kinds as eks_kinds
from modelplane_operator.clouds.eks.render.plan import Facts
from modelplane_operator.clouds.gke import changes as google
from modelplane_operator.clouds.gke import render as gke
from modelplane_operator.clouds.gke.render import kinds as gke_kinds
from modelplane_operator.clouds.render import render_infrastructure
from modelplane_operator.clouds.resources import Account, DesiredResource, ExistingResource, Inventory, Kind, Owner
from modelplane_operator.clouds.steps import DeleteResource
from tests.support.builders import EPOCH
from tests.support.golden import Golden
from tests.support.manifests import ROOT, Manifest, load

GOLDEN = Path(__file__).parent / "golden"
UID = "6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa"
WHERE = google.Where("lab-1234", "us-central1")


@dataclass(frozen=True, slots=True)
class Example:
    """What one cloud makes of its example."""

    name: str
    owner: Owner
    wanted: Sequence[DesiredResource]
    kinds: Mapping[str, Kind]
    left: Sequence[ExistingResource]
    """What ran in the cluster has made."""
    ids: Mapping[str, str]
    """By kind, what an id is like when it is no plain one."""
    create: Callable[[DesiredResource], Manifest]
    delete: Callable[[ExistingResource], Manifest]

    def found(self) -> list[ExistingResource]:
        """All of it, once it is there."""
        own = (
            ExistingResource(
                one.key, one.kind, self.ids.get(one.kind, "{}").format(f"id-of-{one.key}"), "Ready", self.owner.uid
            )
            for one in self.wanted
            if one.kind != gke_kinds.SERVICE  # what was enabled stays, and is not looked for
        )
        return [*own, *self.left]


def _rendered(name: str) -> Manifest:
    (cluster,) = load(ROOT / "examples" / "clusters" / f"{name}.yaml")
    classes = [InferenceClass.parse(one) for one in load(ROOT / "examples" / "classes" / f"{name}.yaml")]
    rendered = render_infrastructure(
        InferenceCluster.parse({**cluster, "metadata": {**cluster["metadata"], "uid": "uid-of-the-cluster"}}),
        {one.metadata.name: one for one in classes},
    )
    return {**rendered, "metadata": {**rendered["metadata"], "uid": UID}}


def _swept(kind: str, identity: str) -> ExistingResource:
    return ExistingResource(identity, kind, identity, "Ready", "", swept=True)


def _eks() -> Example:
    facts = Facts(
        ("us-west-2a", "us-west-2b", "us-west-2c"), "arn:aws:iam::123456789012:role/modelplane", {"p5en.48xlarge": 16}
    )
    owner = Owner(UID, "eks-oregon")

    def told(one: aws.Request) -> Manifest:
        return {"call": f"{one.service}.{one.operation}", "parameters": one.parameters}

    rows = {eks_kinds.RULE: "ingress|sg-of-{0}|{0}"} | {
        kind: "|".join(["{0}"] * len(parts)) for kind, parts in aws.PARTS.items()
    }
    return Example(
        "eks",
        owner,
        eks.resources(EKSCluster.parse_bounded(_rendered("eks")), facts),
        eks_kinds.KINDS,
        [
            _swept(eks_kinds.LOAD_BALANCER, "a0123"),
            _swept(eks_kinds.INTERFACE, "eni-0123"),
            _swept(eks_kinds.LEFTOVER_GROUP, "sg-0123"),
            _swept(eks_kinds.VOLUME, "vol-0123"),
            _swept(eks_kinds.ACCESS_POINT, "fsap-0123"),
        ],
        {kind: one.replace("|", aws.SEPARATOR) for kind, one in rows.items()},
        lambda one: told(aws.creation(owner, one, "token")),
        lambda one: told(aws.deletion(one)),
    )


def _gke() -> Example:
    owner = Owner(UID, "gke-iowa")

    def told(one: google.Request) -> Manifest:
        if isinstance(one, google.Gke):
            return {"call": f"container.{one.operation}", "parameters": one.request}
        body = {"parameters": one.body} if one.body is not None else {}
        return {"call": f"{one.service} {one.method} {one.path}", **body}

    return Example(
        "gke",
        owner,
        gke.resources(GKECluster.parse_bounded(_rendered("gke")), gke.Facts(WHERE.project)),
        gke_kinds.KINDS,
        [
            _swept(gke_kinds.FORWARDING_RULE, "regions/us-central1/forwardingRules/a0123"),
            _swept(gke_kinds.TARGET_POOL, "regions/us-central1/targetPools/a0123"),
            _swept(gke_kinds.BACKEND_SERVICE, "regions/us-central1/backendServices/a0123"),
            _swept(gke_kinds.ENDPOINT_GROUP, "zones/us-central1-a/networkEndpointGroups/k8s1-0123"),
            _swept(gke_kinds.FIREWALL, "global/firewalls/k8s-fw-a0123"),
            _swept(gke_kinds.DISK, "zones/us-central1-a/disks/pvc-1"),
            _swept(gke_kinds.FILES, "locations/us-central1-a/instances/pvc-2"),
            _swept(gke_kinds.PEERING, "global/networks/gke-iowa-0123/peerings/filestore-peer-1"),
        ],
        {},
        lambda one: told(google.creation(WHERE, owner, one, "gke-iowa-0123")),
        lambda one: told(google.deletion(WHERE, one)),
    )


EXAMPLES = {"eks": _eks, "gke": _gke}


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Example:
    return EXAMPLES[request.param]()


def _creations(of: Example) -> Iterator[tuple[str, Manifest]]:
    # What the cloud would answer, by names that say what of whom it is.
    said = ("id", "arn", "securityGroup", "selfLink")
    outputs = {one.key: {name: f"{name}-of-{one.key}" for name in said} for one in of.wanted}
    for one in of.wanted:
        resolved = one.resolve(outputs)
        assert resolved is not None
        yield one.key, of.create(resolved)


def _deletions(of: Example) -> Iterator[Sequence[DeleteResource]]:
    """Those that are made side by side, one after the other; each has had its effect before the next."""
    found = of.found()
    while True:
        seen = Inventory(tuple(found), EPOCH)
        decision = decide(
            Situation(Account("", "", ""), of.owner, (), of.kinds, seen, (), {}, "process", EPOCH, terminating=True)
        )
        steps = [step for step in decision.steps if isinstance(step, DeleteResource)]
        assert len(steps) == len(decision.steps)
        if not steps:
            assert found == []
            return
        yield steps
        gone = {(step.existing.kind, step.existing.id) for step in steps}
        kinds = {step.existing.kind for step in steps}
        found = [one for one in found if (one.kind, one.id) not in gone and of.kinds[one.kind].goes_with not in kinds]


def test_the_example_is_made_by_these_requests(example: Example, golden: Golden) -> None:
    told = [{"key": key, **request} for key, request in _creations(example)]

    golden.holds(GOLDEN / f"{example.name}-requests.yaml", _yaml(told))


def test_the_example_is_deleted_by_these_requests_in_this_order(example: Example, golden: Golden) -> None:
    told = [
        {"side by side": [{"key": step.existing.key, **example.delete(step.existing)} for step in steps]}
        for steps in _deletions(example)
    ]

    golden.holds(GOLDEN / f"{example.name}-deletions.yaml", _yaml(told))


def _yaml(told: Sequence[Manifest]) -> str:
    plain = json.loads(json.dumps(told))  # what is one object in two places is written twice
    return yaml.safe_dump(plain, sort_keys=False, width=120)


def _all(of: Example) -> Iterator[tuple[str, Manifest]]:
    yield from _creations(of)
    yield from ((step.existing.key, of.delete(step.existing)) for steps in _deletions(of) for step in steps)


def test_aws_knows_each_of_them() -> None:
    loader, models = Loader(), dict[str, dict[str, Any]]()
    problems: list[str] = []
    for key, one in _all(_eks()):
        service, _, operation = one["call"].partition(".")
        if service not in models:
            model = ServiceModel(loader.load_service_model(service, "service-2"), service)
            models[service] = {xform_name(name): model.operation_model(name) for name in model.operation_names}
        report = ParamValidator().validate(one["parameters"], models[service][operation].input_shape)
        problems += [f"{key}: {report.generate_report()}"] if report.has_errors() else []

    assert problems == []


def test_google_knows_each_of_them() -> None:
    """A field that its libraries do not have raises here, and so does a word that is none of an enumeration's."""
    bodies: Mapping[str, Any] = {
        "compute POST global/networks": partial(compute_v1.Network.from_json, ignore_unknown_fields=False),
        "compute POST regions/us-central1/subnetworks": partial(
            compute_v1.Subnetwork.from_json, ignore_unknown_fields=False
        ),
        "compute POST global/networks/gke-iowa-0123/removePeering": partial(
            compute_v1.NetworksRemovePeeringRequest.from_json, ignore_unknown_fields=False
        ),
    }
    checked = set[str]()
    for _, one in _all(_gke()):
        if one["call"].startswith("container."):
            name = "".join(part.capitalize() for part in one["call"].removeprefix("container.").split("_"))
            getattr(cluster_service, f"{name}Request")(one["parameters"])
        elif one.get("parameters"):
            bodies[one["call"]](json.dumps(one["parameters"]))
        checked.add(one["call"].partition("/")[0])

    assert checked >= {"container.create_cluster", "container.delete_cluster", "compute POST global"}
