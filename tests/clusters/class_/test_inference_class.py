"""A class says what of it cannot be read, who uses it, and stays while somebody does."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.condition_types import Ready
from kubeloop.plan import KEEP, LET_GO, Plan
from modelplane_operator.api import InferenceClass
from modelplane_operator.api.inference_class import Accepted, InferenceClassStatus
from modelplane_operator.clusters.class_.plan import Observed, plan
from tests.support.builders import EPOCH, GPU
from tests.support.classes import inference_class

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]


def status(accepted: Any, ready: Any, *, clusters: int = 0, nodes: int = 0) -> InferenceClassStatus:
    return InferenceClassStatus(clusters=clusters, nodes=nodes, conditions=(accepted, ready))


FINE = Accepted.AVAILABLE.condition(EPOCH)
AVAILABLE = Ready.AVAILABLE.condition(EPOCH)
STAYS = "Clusters have pools of the class: "
REMEDY = ": remove these pools, or give them another class"


@pytest.mark.parametrize(
    ("known", "users", "wanted"),
    [
        pytest.param(inference_class(), {}, Plan((LET_GO,), status(FINE, AVAILABLE)), id="one that nobody uses"),
        pytest.param(
            inference_class(),
            {"a": 3, "b": 0},
            Plan((KEEP,), status(FINE, Ready.AVAILABLE.condition(EPOCH, message=f"{STAYS}a, b"), clusters=2, nodes=3)),
            id="one in use is held, and counts its users and their nodes",
        ),
        pytest.param(
            inference_class(terminating=True),
            dict.fromkeys("gfedcba", 1),
            Plan(
                (),
                status(
                    FINE,
                    Ready.DELETING.condition(EPOCH, message=f"{STAYS}a, b, c, d, e and 2 more{REMEDY}"),
                    clusters=7,
                    nodes=7,
                ),
            ),
            id="one that is deleted while in use waits",
        ),
        pytest.param(
            inference_class(terminating=True),
            {},
            Plan((LET_GO,), status(FINE, Ready.DELETING.condition(EPOCH))),
            id="one that is deleted goes when nobody uses it any more",
        ),
    ],
)
def test_a_class_is_kept_while_it_is_used(known: InferenceClass, users: dict[str, int], wanted: Plan) -> None:
    assert plan(Observed(known, users, EPOCH)) == wanted


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ({"capacity": {"memory": {"value": "80Gx"}}}, ["capacity memory", "Gx is none of the suffixes"]),
        ({"attributes": {"driverVersion": {"version": "9.0"}}}, ["attribute driverVersion", "write three numbers"]),
        ({"driver": "GPU NVIDIA"}, ['driver "GPU NVIDIA" is not a DNS name of at most 63 characters']),
        ({"driver": "d" * 64}, ["at most 63 characters"]),
        ({"deviceClassName": "gpu_nvidia"}, ['deviceClassName "gpu_nvidia" is not a DNS name']),
        ({"attributes": {"cuda-version": {"int": 1}}}, ['attribute "cuda-version" cannot be published', "underscores"]),
        ({"attributes": {"Example/rack": {"int": 1}}}, ['attribute "Example/rack" cannot be published']),
        (
            {"capacity": {"memory": {"value": "1Gi"}, f"{GPU}/memory": {"value": "2Gi"}}},
            [f"capacity memory is listed twice, as memory and as {GPU}/memory"],
        ),
    ],
    ids=str,
)
def test_what_cannot_be_read_or_claimed_is_named_with_its_device(device: Manifest, said: list[str]) -> None:
    decided = plan(Observed(inference_class(**device), {}, EPOCH))

    assert decided.status is not None
    accepted, ready = decided.status.conditions
    assert (accepted.status, accepted.reason) == ("False", "InvalidDevice")
    assert (accepted.message or "").startswith("Device gpu: ")
    assert all(words in (accepted.message or "") for words in said)
    assert ready.status == "False"
    assert "Device gpu" in (ready.message or "")


@pytest.mark.parametrize(
    "device",
    [
        {},
        {"attributes": {"example.com/rack": {"string": "b3"}, "_x": {"bool": True}}},
        {"claim": "Synthetic", "deviceClassName": None, "driver": "Anything", "attributes": {"link-type": {"int": 1}}},
    ],
    ids=["plain", "keys of another domain", "one that nobody claims has names as it likes"],
)
def test_what_can_be_used_is_accepted(device: Manifest) -> None:
    decided = plan(Observed(inference_class(**device), {}, EPOCH))

    assert decided.status == status(FINE, AVAILABLE)


def test_all_that_is_wrong_is_said_at_once() -> None:
    wrong = inference_class(capacity={"a": {"value": "x"}, "b": {"value": "y"}}, driver="No!")

    decided = plan(Observed(wrong, {}, EPOCH))

    assert decided.status is not None
    assert (decided.status.conditions[0].message or "").lower().count("device gpu: ") == 3
