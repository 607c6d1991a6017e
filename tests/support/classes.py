"""InferenceClasses."""

from __future__ import annotations

from typing import Any

from modelplane_operator.api import InferenceClass
from tests.support.builders import EPOCH, GPU


def inference_class(terminating: bool = False, **device: Any) -> InferenceClass:  # noqa: FBT001, FBT002
    gpu = {"name": "gpu", "driver": GPU, "deviceClassName": GPU, "capacity": {"memory": {"value": "141Gi"}}}
    metadata = {"name": "h200", "uid": "u", **({"deletionTimestamp": EPOCH.isoformat()} if terminating else {})}
    return InferenceClass.parse({"metadata": metadata, "spec": {"devices": [gpu | device]}})
