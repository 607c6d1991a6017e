"""A cluster on GKE as data: that its parts fit together, whatever the spec."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.clouds.gke.render import Facts, kinds, resources
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.resources import refs
from tests.support.manifests import Manifest

FACTS = Facts("lab-1234")
ZONES = ("us-central1-a", "us-central1-b", "us-central1-f")
NAME = "[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
"""What GKE takes for a cluster's or a pool's."""


def _pool(name: str, zones: tuple[str, ...], least: int, more: int, count: int) -> Manifest:
    return {
        "name": name,
        "role": "GPU",
        "machineType": "g2-standard-12",
        "gpu": {"acceleratorType": "nvidia-l4", "acceleratorCount": 1},
        "zones": [*zones],
        "nodeCount": count,
        "minNodeCount": least,
        "maxNodeCount": least + more,
    }


def _cluster(*pools: Manifest, name: str = "berlin", **spec: object) -> GKECluster:
    metadata = {"name": name, "namespace": "modelplane-system", "uid": "6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa"}
    return GKECluster.parse(
        {
            "apiVersion": GKECluster.definition.api_version,
            "kind": "GKECluster",
            "metadata": metadata,
            "spec": {"region": "us-central1", "nodePools": [*pools], **spec},
        }
    )


numbers = st.integers(0, 20)
pools = st.lists(
    st.builds(
        _pool,
        st.from_regex("[a-z0-9]([-a-z0-9_.]{0,38}[a-z0-9])?", fullmatch=True),
        st.lists(st.sampled_from(ZONES), min_size=1, unique=True).map(tuple),
        numbers,
        numbers,
        numbers,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda pool: pool["name"],
)


@given(pools)
def test_each_resource_comes_after_what_it_needs_and_can_go_before_it(given_pools: list[Manifest]) -> None:
    found = resources(_cluster(*given_pools), FACTS)

    by_key = {one.key: one for one in found}
    assert len(by_key) == len(found), "a key names one resource"
    before: set[str] = set()
    for one in found:
        assert one.requirements() <= before
        before.add(one.key)
        for key in {ref.key for ref in refs(one.parameters)}:
            # What refers to another must go before it: else Google refuses to delete that.
            assert one.kind in kinds.KINDS[by_key[key].kind].deleted_before, (one.key, key)


def test_no_kind_has_to_be_gone_before_itself() -> None:
    for name in kinds.KINDS:
        above, new = set[str](), {*kinds.KINDS[name].deleted_before}
        while new:
            above |= new
            new = {one for other in new for one in kinds.KINDS[other].deleted_before} - above
        assert name not in above, name


@given(st.from_regex("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True), pools)
def test_names_fit_what_google_takes_and_two_pools_share_none(name: str, given_pools: list[Manifest]) -> None:
    limits = {kinds.CLUSTER: NAME, kinds.NODE_POOL: NAME}
    found = resources(_cluster(*given_pools, name=name), FACTS)
    for one in found:
        pattern = limits.get(one.kind, "[a-z]([-.a-z0-9]{0,61}[a-z0-9])?")
        assert re.fullmatch(pattern, one.parameters["name"]), one.key
    taken = [one.parameters["name"] for one in found if one.kind == kinds.NODE_POOL]
    assert len(set(taken)) == len(taken)


@given(pools)
def test_a_pool_begins_with_no_more_nodes_than_it_may_have(given_pools: list[Manifest]) -> None:
    for one in resources(_cluster(*given_pools), FACTS):
        if one.key not in ("nodepool-system",) and one.kind == kinds.NODE_POOL:
            begins = one.parameters["initial_node_count"] * len(one.parameters["locations"])
            assert begins <= one.parameters["autoscaling"]["total_max_node_count"]


@pytest.mark.parametrize(
    ("networking", "words"),
    [
        ({"podCidr": "10.0.0.0/16"}, "networking.podCidr 10.0.0.0/16 and networking.nodeCidr 10.0.0.0/24 overlap"),
        ({"serviceCidr": "10.1.128.0/20"}, "networking.podCidr 10.1.0.0/16 and networking.serviceCidr"),
    ],
)
def test_ranges_that_overlap_are_told(networking: Manifest, words: str) -> None:
    with pytest.raises(CannotMake, match=words):
        resources(_cluster(_pool("a", ZONES[:1], 0, 1, 1), networking=networking), FACTS)
