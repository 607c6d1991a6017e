"""A cluster that is registered under two names is the first one's: whoever has it keeps it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from modelplane_operator.api import InferenceCluster
from modelplane_operator.clients.collection import Collection
from modelplane_operator.clients.kube import Event
from modelplane_operator.controllers.identity import CLUSTERS, registered_before, uid_of
from modelplane_operator.controllers.reading import Cluster

Manifest = dict[str, Any]


def known(name: str, day: int, *, uid: str = "u", has: bool = False) -> Manifest:
    """A cluster that was made on that day; `has`: it was told to be the only one."""
    told = {
        "type": "RegisteredOnce",
        "status": "True",
        "reason": "OnlyOne",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    made = {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}
    return {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": made,
        "spec": {"cluster": {"source": "Existing"}},
        "status": {"observed": {"uid": uid}, "conditions": [told] if has else []},
    }


@pytest.mark.parametrize(
    ("mine", "others", "first"),
    [
        (known("b", 2), [], ""),
        (known("b", 2), [known("a", 1)], "a"),
        (known("b", 1), [known("a", 2)], ""),
        (known("b", 2), [known("a", 2)], "a"),
        (known("b", 2), [known("a", 1, uid="another")], ""),
        (known("b", 2, has=True), [known("a", 1)], ""),
        (known("b", 2, has=True), [known("a", 1, has=True)], "a"),
        (known("b", 1), [known("a", 2, has=True), known("c", 3)], "a"),
    ],
    ids=[
        "alone",
        "younger",
        "older",
        "of the same second",
        "another cluster",
        "younger, but it has it",
        "both have it",
        "older, and another has it",
    ],
)
def test_whose_a_cluster_is(mine: Manifest, others: list[Manifest], first: str) -> None:
    clusters = Collection(CLUSTERS, now=lambda: 0.0, indexes={"uid": uid_of})
    for one in (mine, *others):
        clusters.seen(Event("ADDED", one))
    hub = cast("Cluster", SimpleNamespace(find={CLUSTERS: clusters}.get))

    assert registered_before(InferenceCluster.parse(mine), "u", hub) == first
    assert registered_before(InferenceCluster.parse(mine), "", hub) == "", "of a cluster that tells nothing"
