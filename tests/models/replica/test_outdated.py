"""What a replica reports of pods that the running operator would render differently."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.plan import Apply, Plan
from kubeloop.types import DEPLOYMENT, type_of
from modelplane_operator.api.model_replica import ModelReplica, OutdatedPods
from modelplane_operator.images import Images
from modelplane_operator.models.replica.plan import ClusterState, Observed, plan
from modelplane_operator.models.replica.render import (
    EXTENSION_POLICIES,
    REVISION,
    Context,
    Lifecycle,
    name_rendering,
    operator_settings,
)
from tests.support.builders import EPOCH, replica

pytestmark = pytest.mark.usefixtures("well_worded")

OLD, NEW = Images(picker="registry.example.com/picker:1"), Images(picker="registry.example.com/picker:2")
SLOW = Lifecycle(startup_seconds=60, drain_seconds=10, grace_seconds=20)


def rendered(revision: int = REVISION, images: Images | None = None, *, copies: int = 2) -> ModelReplica:
    """Return a replica of a revision; with images, one that has recorded its settings."""
    one = replica("a", copies=copies)
    one = one.model_copy(update={"metadata": one.metadata.model_copy(update={"uid": "uid", "generation": 1})})
    recorded = operator_settings(images, Lifecycle()) if images else None
    return one.model_copy(update={"spec": one.spec.model_copy(update={"pod_revision": revision, "operator": recorded})})


def planned(subject: ModelReplica, images: Images = NEW, lifecycle: Lifecycle | None = None) -> Plan:
    """Return the plan of an operator with these settings."""
    around = Context("uid-of-the-namespace", frozenset({EXTENSION_POLICIES}), images=images)
    observed = Observed(subject, ClusterState(), around, (), (), None, (), lifecycle or Lifecycle(), EPOCH)
    return plan(observed)


def pods(decided: Plan) -> list[Any]:
    """Return the pod templates of a plan."""
    manifests = [step.manifest for step in decided.steps if isinstance(step, Apply)]
    return [manifest["spec"]["template"] for manifest in manifests if type_of(manifest) == DEPLOYMENT]


def outdated(decided: Plan) -> OutdatedPods | None:
    """Return what the status says of outdated pods."""
    return getattr(decided.status, "outdated", None)


def test_new_images_and_settings_change_no_pod_and_the_status_names_each_field() -> None:
    subject = rendered(images=OLD)

    before, after = planned(subject, OLD), planned(subject, NEW, SLOW)

    assert pods(before) == pods(after)
    assert outdated(before) is None
    found = outdated(after)
    assert found is not None
    assert not found.security
    assert found.rendering == name_rendering(operator_settings(NEW, SLOW))
    texts = "; ".join(found.changes)
    assert "terminationGracePeriodSeconds changes from 360 to 20" in texts
    assert 'image changes from "registry.example.com/picker:1" to "registry.example.com/picker:2"' in texts


def test_a_new_version_with_the_same_pods_is_no_news() -> None:
    subject = rendered(images=OLD)
    assert subject.spec.operator
    older = subject.spec.operator.model_copy(update={"version": "0.0.1"})
    subject = subject.model_copy(update={"spec": subject.spec.model_copy(update={"operator": older})})

    assert outdated(planned(subject, OLD)) is None


def test_a_new_image_of_the_picker_does_not_concern_a_replica_without_one() -> None:
    assert outdated(planned(rendered(images=OLD, copies=1), NEW)) is None


def test_pods_of_an_older_revision_lack_a_security_fix() -> None:
    found = outdated(planned(rendered(0), OLD))

    assert found is not None
    assert found.security
    assert found.version == ""
    assert found.changes


@pytest.mark.parametrize("revision", range(REVISION + 1))
def test_a_replica_without_recorded_settings_follows_those_of_the_operator(revision: int) -> None:
    """It was placed before replicas recorded them."""
    assert outdated(planned(rendered(REVISION), OLD)) is None
    assert pods(planned(rendered(revision), OLD)) != pods(planned(rendered(revision), NEW))


def test_a_change_of_long_names_and_values_fits_the_status() -> None:
    """The longest name of a workload, and images of which each is cut."""
    subject = rendered(images=Images(picker=f"registry.example.com/{'a' * 200}:1"))
    named = subject.model_copy(update={"metadata": subject.metadata.model_copy(update={"name": "r" * 63})})

    found = outdated(planned(named, Images(picker=f"registry.example.com/{'b' * 200}:1"), SLOW))

    assert found is not None
    assert all(len(change) <= 256 for change in found.changes)
    assert any("image changes" in change for change in found.changes)
