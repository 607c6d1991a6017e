"""Whose software it is that a cluster has already."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.objects import Key
from modelplane_operator.api import labels
from modelplane_operator.clusters.stack.beside import Marker, holder

OURS = Key("monitoring", "mp-kube-prometheus-stack")
MARKER = Marker("prometheuses.monitoring.coreos.com", "prometheus-operator")


def definition(*, name: str = MARKER.name, **metadata: Any) -> dict[str, Any]:
    return {"kind": "CustomResourceDefinition", "metadata": {"name": name, **metadata}}


def by_helm(namespace: str, name: str) -> dict[str, str]:
    return {"meta.helm.sh/release-namespace": namespace, "meta.helm.sh/release-name": name}


def deployment(image: str, **metadata: Any) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "any", "image": image}]}}}
    return {"kind": "Deployment", "metadata": {"name": "po", "namespace": "obs", **metadata}, "spec": spec}


OPERATOR = deployment("quay.example:5000/mirror/prometheus-operator:v0.82.2@sha256:0f")


@pytest.mark.parametrize(
    ("definitions", "deployments", "whose"),
    [
        ([], [OPERATOR], None),
        ([definition(name="podmonitors.monitoring.coreos.com")], [OPERATOR], None),
        ([definition()], [], None),
        ([definition()], [deployment("example/prometheus-operator-lookalike:v1")], None),
        ([definition()], [OPERATOR], "Deployment obs/po"),
        (
            [definition()],
            [deployment("a@sha256:0", labels={"app.kubernetes.io/name": "prometheus-operator"})],
            "Deployment obs/po",
        ),
        (
            [definition()],
            [deployment("prometheus-operator", annotations=by_helm("obs", "kps"))],
            "Helm release obs/kps",
        ),
        ([definition()], [deployment("prometheus-operator", annotations=by_helm(*OURS))], ""),
        ([definition(annotations=by_helm("obs", "crds"))], [], "Helm release obs/crds"),
        ([definition(annotations=by_helm(*OURS))], [OPERATOR], ""),
        ([definition(labels={labels.OWNER_UID: "u"})], [OPERATOR], ""),
        ([definition(labels={"olm.managed": "true"})], [], "the Operator Lifecycle Manager"),
        (
            [definition(labels={"app.kubernetes.io/managed-by": "cluster-monitoring-operator"})],
            [],
            "cluster-monitoring-operator",
        ),
    ],
)
def test_whose_it_is(definitions: list[Any], deployments: list[Any], whose: str | None) -> None:
    said = holder(MARKER, OURS, definitions, deployments)

    assert said == whose


def test_what_a_deployment_cannot_show_is_shown_by_its_definition_alone() -> None:
    assert holder(Marker(MARKER.name), OURS, [definition()], [OPERATOR]) is None
