"""Every request by which the example of a cluster on EKS is made, and that the model of AWS in the SDK takes each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from modelplane_operator.api import InferenceClass, InferenceCluster
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clients.clouds.eks.changes import Request, creation
from modelplane_operator.kube.cloud import Owner
from modelplane_operator.rendering.clusters.eks import resources
from modelplane_operator.rendering.clusters.eks.plan import Facts
from modelplane_operator.rendering.clusters.of_inference_cluster import render_infrastructure
from tests.support.golden import assert_golden
from tests.support.manifests import ROOT, load

GOLDEN = Path(__file__).parent / "golden" / "eks-requests.yaml"
OWNER = Owner("6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa", "eks-oregon")
FACTS = Facts(
    ("us-west-2a", "us-west-2b", "us-west-2c"), "arn:aws:iam::123456789012:role/modelplane", {"p5en.48xlarge": 16}
)


def _requests() -> Iterator[tuple[str, Request]]:
    (cluster,) = load(ROOT / "examples" / "clusters" / "eks.yaml")
    classes = [InferenceClass.parse(one) for one in load(ROOT / "examples" / "classes" / "eks.yaml")]
    rendered = render_infrastructure(
        InferenceCluster.parse({**cluster, "metadata": {**cluster["metadata"], "uid": "uid-of-the-cluster"}}),
        {one.metadata.name: one for one in classes},
    )
    wanted = resources(EKSCluster.admitted({**rendered, "metadata": {**rendered["metadata"], "uid": OWNER.uid}}), FACTS)
    # What AWS would answer, by names that say what of whom it is.
    said = ("id", "arn", "securityGroup")
    outputs = {one.key: {name: f"{name}-of-{one.key}" for name in said} for one in wanted}
    for one in wanted:
        resolved = one.resolved(outputs)
        assert resolved is not None
        yield one.key, creation(OWNER, resolved, "token")


def test_the_requests_for_the_example_are_these(pytestconfig: pytest.Config) -> None:
    told = [
        {"key": key, "call": f"{one.service}.{one.operation}", "parameters": one.parameters} for key, one in _requests()
    ]

    assert_golden(GOLDEN, yaml.safe_dump(told, sort_keys=False, width=120), pytestconfig)


def test_each_of_them_is_one_that_the_service_knows() -> None:
    loader, models = Loader(), dict[str, dict[str, Any]]()
    problems: list[str] = []
    for key, one in _requests():
        if one.service not in models:
            model = ServiceModel(loader.load_service_model(one.service, "service-2"), one.service)
            models[one.service] = {xform_name(name): model.operation_model(name) for name in model.operation_names}
        report = ParamValidator().validate(one.parameters, models[one.service][one.operation].input_shape)
        problems += [f"{key}: {report.generate_report()}"] if report.has_errors() else []

    assert problems == []
