"""What we made on a cluster and nobody owns any more is named, and nothing else is."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.reading import Cluster
from kubeloop.types import DEPLOYMENT, NAMESPACE
from modelplane_operator.api import labels
from modelplane_operator.api.labels import FIELD_MANAGER
from modelplane_operator.clusters.cluster.controller import CLUSTERS, REPLICAS
from modelplane_operator.lookups import cluster_of_replica
from modelplane_operator.models.replica.orphans import LASTS, Sweeps, elsewhere, orphans
from tests.support.builders import EPOCH
from tests.support.informers import holding, stored

Manifest = dict[str, Any]
APPLIED = [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}}]


def of_replica(name: str, uid: str = "", **metadata: Any) -> Manifest:
    """The Deployment of a replica of that name."""
    marks = {
        labels.OWNER_KIND: "ModelReplica",
        labels.OWNER_NAMESPACE: "team",
        labels.OWNER_NAME: name,
        labels.OWNER_UID: uid or f"uid-{name}",
    }
    return stored(DEPLOYMENT, name, "modelplane-team", **{"managedFields": APPLIED, "labels": marks, **metadata})


def home(tenant: str, **metadata: Any) -> Manifest:
    marks = {labels.OWNER_KIND: "Namespace", labels.OWNER_NAME: tenant, labels.OWNER_UID: f"uid-{tenant}"}
    return stored(NAMESPACE, f"modelplane-{tenant}", managedFields=APPLIED, labels=marks, **metadata)


def remote(*found: Manifest, name: str = "east") -> Cluster:
    kinds = (DEPLOYMENT, NAMESPACE)
    held = {kind: holding(kind, [one for one in found if one["kind"] == kind.kind]) for kind in kinds}
    return cast("Cluster", SimpleNamespace(name=name, find=held.get))


def hub(*placed: tuple[str, str]) -> Cluster:
    """A hub with these replicas of namespace `team`, each with its cluster."""
    found = [{**stored(REPLICAS, name, "team"), "spec": {"clusterName": cluster}} for name, cluster in placed]
    held = {REPLICAS: holding(REPLICAS, found, cluster=cluster_of_replica), CLUSTERS: holding(CLUSTERS, [])}
    return cast("Cluster", SimpleNamespace(name="", find=held.get))


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (of_replica("model"), []),
        (of_replica("gone"), ["Deployment modelplane-team/gone"]),
        (of_replica("model", uid="of-another-life"), ["Deployment modelplane-team/model"]),
        (of_replica("gone", deletionTimestamp=EPOCH.isoformat()), []),
        (of_replica("gone", managedFields=[]), []),
        (of_replica("gone", labels={labels.OWNER_UID: "x", labels.OWNER_KIND: "Unheard"}), []),
        (home("team"), []),
        (home("left"), ["Namespace modelplane-left"]),
        (home("left", deletionTimestamp=EPOCH.isoformat()), []),
    ],
    ids=[
        "owned",
        "its replica is gone",
        "its replica is another of that name",
        "it is terminating",
        "somebody else has made it with our labels",
        "of a kind of owner that is not known",
        "the namespace of a replica",
        "a namespace that no replica needs",
        "a namespace that is terminating",
    ],
)
def test_what_nobody_owns_is_named(one: Manifest, found: list[str]) -> None:
    assert list(orphans(remote(one), (DEPLOYMENT, NAMESPACE), hub(("model", "east")))) == found


def test_a_namespace_that_a_replica_needs_under_another_name_of_the_cluster_is_no_orphan() -> None:
    known = hub(("model", "west"))

    assert list(orphans(remote(home("team")), (NAMESPACE,), known, ["west"])) == []
    assert list(orphans(remote(home("team")), (NAMESPACE,), known)) == ["Namespace modelplane-team"]


def test_it_is_looked_for_every_few_minutes() -> None:
    sweeps = Sweeps((DEPLOYMENT,))
    ill, well = remote(of_replica("gone")), remote()

    first = sweeps.of(ill, hub(), EPOCH)
    then = sweeps.of(well, hub(), EPOCH + LASTS - timedelta(seconds=1))
    later = sweeps.of(well, hub(), EPOCH + LASTS)

    assert (first, then, later) == (("Deployment modelplane-team/gone",),) * 2 + ((),)


def test_a_cluster_under_two_names_waits_for_no_objects_of_the_other() -> None:
    known = hub(("here", "east"), ("there", "west"))

    assert [elsewhere(of_replica(name), "east", known) for name in ("here", "there", "gone")] == [False, True, False]
