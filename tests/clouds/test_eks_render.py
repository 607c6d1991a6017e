"""A cluster on EKS as data: that its parts fit together, whatever the spec."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.api import names
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.eks.render import kinds, resources
from modelplane_operator.clouds.eks.render.plan import Facts, zones_for
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.resources import Ref, refs
from tests.support.manifests import Manifest

ZONES = ("us-west-2a", "us-west-2b", "us-west-2d")
FACTS = Facts(ZONES, "arn:aws:iam::123456789012:role/modelplane", {"p5.48xlarge": 32})


def _pool(name: str, zones: tuple[str, ...], *, efa: bool, block: bool) -> Manifest:
    return {
        "name": name,
        "role": "GPU",
        "instanceType": "p5.48xlarge",
        "gpu": {"acceleratorType": "nvidia-h100"},
        "zones": [*zones],
        **({"fabric": "EFA"} if efa else {}),
        **({"capacityBlock": {"capacityReservationId": "cr-0123"}} if block else {}),
    }


def _cluster(*pools: Manifest, name: str = "berlin") -> EKSCluster:
    metadata = {"name": name, "namespace": "modelplane-system", "uid": "6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa"}
    return EKSCluster.parse(
        {
            "apiVersion": EKSCluster.definition.api_version,
            "kind": "EKSCluster",
            "metadata": metadata,
            "spec": {"region": "us-west-2", "nodePools": [*pools]},
        }
    )


pools = st.lists(
    st.builds(
        _pool,
        st.from_regex("[a-z0-9]([-a-z0-9_.]{0,38}[a-z0-9])?", fullmatch=True),
        st.lists(st.sampled_from(ZONES), min_size=1, unique=True).map(tuple),
        efa=st.booleans(),
        block=st.booleans(),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda pool: pool["name"],
)


@given(pools)
def test_each_resource_comes_after_what_it_needs_and_can_go_before_it(given_pools: list[Manifest]) -> None:
    found = resources(_cluster(*given_pools), FACTS)

    assert len({one.key for one in found}) == len(found), "a key names one resource"
    made: dict[str, str] = {}
    for one in found:
        assert one.requirements() <= {other.key for other in found}
        made[one.key] = one.kind
    by_key = {one.key: one for one in found}
    for one in found:
        for key in {ref.key for ref in refs(one.parameters)}:
            needed = by_key[key]
            if one.kind == kinds.ROUTE and needed.kind != kinds.ROUTE_TABLE:
                continue  # a route to what is gone holds nothing up
            # What refers to another must go before it, or with it: else the cloud refuses to delete that.
            chain = {one.kind} | ({kinds.KINDS[one.kind].goes_with} - {""})
            assert needed.kind == one.kind or chain & _before(needed.kind), (one.key, key)


def _before(kind: str) -> set[str]:
    """All that is gone before one of that kind goes, and the kind itself for what goes with it."""
    found, new = {kind}, {kind}
    while new:
        new = {one for name in new for one in kinds.KINDS[name].deleted_before} - found
        found |= new
    return found


def test_no_kind_has_to_be_gone_before_itself() -> None:
    for name in kinds.KINDS:
        above = {one for other in kinds.KINDS[name].deleted_before for one in _before(other)}
        assert name not in above, name


@given(st.from_regex("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True), pools)
def test_names_fit_what_aws_takes(name: str, given_pools: list[Manifest]) -> None:
    limits = {
        "name": "[0-9A-Za-z][A-Za-z0-9_-]{0,99}",
        "RoleName": r"[\w+=,.@-]{1,64}",
        "PolicyName": r"[\w+=,.@-]{1,128}",
        "GroupName": r"(?!sg-)[ -~]{1,255}",
        "LaunchTemplateName": r"[a-zA-Z0-9().\-/_]{3,128}",
        "nodegroupName": "[A-Za-z0-9][A-Za-z0-9_-]{0,62}",
        "CreationToken": "[ -~]{1,64}",
    }
    for one in resources(_cluster(*given_pools, name=name), FACTS):
        for parameter, pattern in limits.items():
            said = one.parameters.get(parameter, "default")
            assert isinstance(said, Ref) or re.fullmatch(pattern, said), (one.key, parameter, said)


def test_two_clusters_of_one_name_share_no_name_on_the_cloud() -> None:
    assert names.on_cloud("berlin", "one") != names.on_cloud("berlin", "other")


def test_zones_are_those_of_the_pools_and_what_there_is_room_for() -> None:
    cluster = _cluster(_pool("a", ("us-west-2d",), efa=False, block=False))

    assert zones_for(cluster, ("us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d")) == (
        "us-west-2a",
        "us-west-2b",
        "us-west-2d",
    )
    assert zones_for(cluster, ("us-west-2a", "us-west-2d")) == ("us-west-2a", "us-west-2d")


@pytest.mark.parametrize(
    ("available", "words"),
    [
        (("us-west-2a", "us-west-2b"), "the account has no zone us-west-2d"),
        (("us-west-2d",), "EKS needs two zones"),
    ],
)
def test_zones_that_will_not_do_are_told(available: tuple[str, ...], words: str) -> None:
    with pytest.raises(CannotMake, match=words):
        zones_for(_cluster(_pool("a", ("us-west-2d",), efa=False, block=False)), available)
