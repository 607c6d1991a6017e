"""Which load balancer a gateway is asked for, and that one that is there stays as it was made."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.api.gateway_pods import GatewayPods
from modelplane_operator.routing.gateway.gateway_pods import (
    AWS_TYPE,
    PATIENT,
    envoy_proxy,
    keep_load_balancer,
    service_annotations,
    traefik_values,
)

ELSE = {key: value for key, value in PATIENT.items() if key != AWS_TYPE}


def pods(**service: Any) -> GatewayPods:
    return GatewayPods.model_validate({"service": service} if service else {})


def live(asked: GatewayPods) -> dict[str, Any]:
    return {"kind": "EnvoyProxy", "metadata": {"name": "any"}, "spec": envoy_proxy(asked, "any")}


@pytest.mark.parametrize(
    ("asked", "annotations"),
    [
        (pods(), PATIENT),
        (pods(annotations={AWS_TYPE: "external"}), {**ELSE, AWS_TYPE: "external"}),
        (pods(annotations={AWS_TYPE: ""}), ELSE),
        (pods(loadBalancerClass="service.k8s.aws/nlb"), ELSE),
    ],
)
def test_a_new_gateway_gets_a_load_balancer_that_lets_models_think(
    asked: GatewayPods, annotations: dict[str, str]
) -> None:
    assert service_annotations([live(asked)]) == annotations
    assert traefik_values(asked, "any")["service"]["annotations"] == annotations


@pytest.mark.parametrize(
    ("asked", "annotations"),
    [(pods(), ELSE), (pods(annotations={AWS_TYPE: "nlb"}), {**ELSE, AWS_TYPE: "nlb"})],
    ids=["nobody says", "somebody says"],
)
def test_a_classic_load_balancer_that_is_there_stays_until_somebody_says_otherwise(
    asked: GatewayPods, annotations: dict[str, str]
) -> None:
    for before in ({}, ELSE):
        first = keep_load_balancer(asked, before)
        then = keep_load_balancer(asked, service_annotations([live(first)]))

        assert service_annotations([live(first)]) == service_annotations([live(then)]) == annotations


def test_a_network_load_balancer_that_is_there_stays() -> None:
    assert keep_load_balancer(pods(), service_annotations([live(pods())])) == pods()
    assert keep_load_balancer(pods(), None) == pods()
