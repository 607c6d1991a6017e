"""Name the settings of the operator that pods depend on. A replica records them, and keeps them until it is rolled."""

from __future__ import annotations

import hashlib

from modelplane_operator import __version__
from modelplane_operator.api.model_replica import ModelReplica, OperatorSettings
from modelplane_operator.images import Images
from modelplane_operator.models.replica.render.pods import Lifecycle
from modelplane_operator.models.replica.render.revision import REVISION


def operator_settings(images: Images, lifecycle: Lifecycle) -> OperatorSettings:
    """Return what a replica records that is rendered now."""
    return OperatorSettings(
        version=__version__,
        picker_image=images.of_picker(),
        sidecar_image=images.of_sidecar(REVISION),
        startup_seconds=lifecycle.startup_seconds,
        drain_seconds=lifecycle.drain_seconds,
        grace_seconds=lifecycle.grace_seconds,
    )


def name_rendering(settings: OperatorSettings) -> str:
    """Return a name for this revision of pods with these settings, whatever the operator's version."""
    text = settings.model_copy(update={"version": ""}).model_dump_json()
    return f"{REVISION}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def choose_images(replica: ModelReplica, images: Images) -> Images:
    """Return the images that a replica has recorded, or else those of the operator that runs."""
    recorded = replica.spec.operator
    return Images(picker=recorded.picker_image, sidecar=recorded.sidecar_image) if recorded else images


def choose_lifecycle(replica: ModelReplica, lifecycle: Lifecycle) -> Lifecycle:
    """Return the times that a replica has recorded, or else those of its revision and the operator that runs."""
    if recorded := replica.spec.operator:
        return Lifecycle(recorded.startup_seconds, recorded.drain_seconds, recorded.grace_seconds)
    return lifecycle.at(replica.spec.pod_revision)
