"""An edit costs no request while the fleet has room for what is to serve in the meantime."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.deployment.simulation import (
    images,
    settled,
    wanting,
    watched,
)
from tests.support.builders import cluster

Manifest = dict[str, Any]


# Replicas that the same plan creates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_an_edit_of_image_and_replicas_waits_for_the_replicas_that_it_creates(nodes: int) -> None:
    hub = settled(wanting(1), a=nodes)
    hub.deployment = wanting(3, image="vllm:2")

    watched(hub, least=1, most=nodes)

    assert images(hub) == {"vllm:2"}
    assert len(hub.serving) == min(nodes, 3)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_cluster_that_joins_during_an_edit_takes_a_replica_before_one_leaves(nodes: int) -> None:
    """Two of four replicas have a place, so that one after the other would be changed where it is."""
    hub = settled(wanting(2), a=2)
    hub.deployment = wanting(4, image="vllm:2")
    hub.clusters["b"] = cluster("b", nodes=nodes)

    watched(hub, least=2, most=2 + nodes)

    assert images(hub) == {"vllm:2"}
    assert len(hub.serving) == 2 + nodes
