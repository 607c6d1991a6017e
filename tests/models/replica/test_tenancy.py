"""A tenant's namespace on a workload cluster stays as long as somebody else has something in it."""

from __future__ import annotations

import pytest

from kubeloop.client.kube import Kube
from kubeloop.objects import key_of
from kubeloop.types import SECRET
from modelplane_operator.api import labels
from modelplane_operator.models.replica.tenancy import of_others
from tests.support.api_fixtures import Manifest

pytestmark = [pytest.mark.fleet, pytest.mark.server]

OURS = {labels.OWNER_KIND: "Namespace", labels.OWNER_UID: "u"}
OF_A_REPLICA = {labels.OWNER_KIND: "ModelReplica", labels.OWNER_UID: "u"}


def made(kind: str, name: str, home: str, *, spec: Manifest | None = None, **metadata: object) -> Manifest:
    known = {"name": name, "namespace": home, **metadata}
    return {"apiVersion": "v1", "kind": kind, "metadata": known, **({"spec": spec} if spec else {})}


async def test_only_what_somebody_else_has_put_there_counts(kube: Kube, namespace: str) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    await kube.create(made("ConfigMap", "ours", namespace, labels=OURS))
    await kube.create(made("ConfigMap", "istio-ca-root-cert", namespace))
    await kube.create(made("Secret", "of-something-else", namespace, ownerReferences=[owner]))
    assert await of_others(kube, namespace) == ()

    unseen = {"apiVersion": "db.example/v1", "kind": "Database", "name": "x", "uid": "x"}
    disk = await kube.create(made("Secret", "of-a-database", namespace, ownerReferences=[unseen]))
    assert await of_others(kube, namespace) == ("Secret of-a-database",)
    await kube.delete(SECRET, key_of(disk), uid=disk["metadata"]["uid"])

    volume = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await kube.create(made("PersistentVolumeClaim", "weights", namespace, spec=volume))
    await kube.create(made("ServiceAccount", "weights-reader", namespace))
    await kube.create(made("ConfigMap", "of-another-replica", namespace, labels=OF_A_REPLICA))
    assert await of_others(kube, namespace) == (
        "PersistentVolumeClaim weights",
        "ConfigMap of-another-replica",
        "ServiceAccount weights-reader",
    )


async def test_what_makes_pods_counts_where_it_has_none(kube: Kube, namespace: str) -> None:
    """A StatefulSet of no replicas, a DaemonSet that no node fits, a CronJob between two runs."""
    pods = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    fitting = {"selector": {"matchLabels": {"app": "x"}}, "template": pods}
    never = {**pods, "spec": {**pods["spec"], "restartPolicy": "Never"}}
    nightly = {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": never}}}
    await kube.create(
        {**made("StatefulSet", "db", namespace, spec={**fitting, "replicas": 0}), "apiVersion": "apps/v1"}
    )
    await kube.create({**made("DaemonSet", "agent", namespace, spec=fitting), "apiVersion": "apps/v1"})
    await kube.create({**made("CronJob", "backup", namespace, spec=nightly), "apiVersion": "batch/v1"})

    assert await of_others(kube, namespace) == ("StatefulSet db", "DaemonSet agent", "CronJob backup")
