"""Pools and classes of a cluster, from what its DRA drivers publish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from modelplane_operator.api import InferenceClass
from modelplane_operator.ask.answers.discovery import Pool, discover_pools
from tests.support.builders import GPU
from tests.support.manifests import Manifest

pytestmark = pytest.mark.usefixtures("well_worded")


def node(name: str, pool: str = "") -> Manifest:
    return {"metadata": {"name": name, "labels": {"modelplane.ai/pool": pool} if pool else {}}}


def slice_of(node: str, count: int, product: str = "NVIDIA H100", *, generation: int = 1) -> Manifest:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "productName": {"string": product},
                "uuid": {"string": f"GPU-{node}-{number}"},
                "driverVersion": {"version": "580.1.0"},
                "numa": {"int": number % 2},
            },
            "capacity": {"memory": {"value": "81559Mi"}},
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": GPU, "nodeName": node, "pool": pool, "devices": devices}}


def found(nodes: Sequence[Manifest], slices: Sequence[Manifest]) -> tuple[Pool, ...]:
    return discover_pools(nodes, slices, [GPU])


def test_nodes_with_the_same_devices_are_a_pool_and_what_tells_devices_apart_is_left_out() -> None:
    (pool,) = found([node("a"), node("b"), node("none")], [slice_of("a", 8), slice_of("b", 8)])

    assert (pool.nodes, pool.unlabelled) == (("a", "b"), ("a", "b"))
    assert pool.in_cluster() == {"name": pool.name, "className": "8-nvidia-h100", "nodeCount": 2}
    assert pool.inference_class()["spec"] == {
        "description": "8 NVIDIA H100 on each node",
        "devices": [
            {
                "name": "gpu",
                "deviceClassName": GPU,
                "driver": GPU,
                "count": 8,
                "attributes": {"productName": {"string": "NVIDIA H100"}},
                "capacity": {"memory": {"value": "81559Mi"}},
            }
        ],
    }
    assert InferenceClass.parse_bounded(pool.inference_class()).spec.devices[0].count == 8


def test_a_single_device_is_not_told_by_what_only_it_has() -> None:
    (pool,) = found([node("a")], [slice_of("a", 1)])
    assert set(pool.devices[0]["attributes"]) == {"productName", "numa"}


def test_other_devices_and_other_labels_are_other_pools_with_names_of_their_own() -> None:
    nodes = [node("a"), node("b"), node("c", "edge")]
    pools = found(nodes, [slice_of("a", 8), slice_of("b", 4), slice_of("c", 8)])
    assert {one.name: (one.nodes, one.unlabelled) for one in pools} == {
        "8-nvidia-h100": (("a",), ("a",)),
        "4-nvidia-h100": (("b",), ("b",)),
        "edge": (("c",), ()),
    }
    assert len({one.class_name for one in pools}) == 3


def test_devices_of_an_older_generation_and_those_that_pods_cannot_claim() -> None:
    (pool,) = discover_pools([node("a")], [slice_of("a", 2, generation=1), slice_of("a", 1, generation=2)], [])
    assert (pool.devices[0]["count"], pool.devices[0]["claim"]) == (1, "Synthetic")
    assert InferenceClass.parse_bounded(pool.inference_class())
