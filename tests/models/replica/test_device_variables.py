"""No engine has devices of its node by an environment variable, its deployment's or its image's."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement
from modelplane_operator.models.deployment.render import not_allowed, render_replica
from modelplane_operator.models.replica.render import CannotRender, Context, render_model_replica
from modelplane_operator.models.replica.render.allowed import DEVICE_PREFIXES, DEVICE_VARIABLES
from tests.support.manifests import Manifest

NOTHING = {"NVIDIA_VISIBLE_DEVICES": "void", "AMD_VISIBLE_DEVICES": "none", "HABANA_VISIBLE_DEVICES": "none"}
"""Habana's runtime takes `void` for all, NVIDIA's `none` for the driver's libraries without a device."""
GIVING = [*DEVICE_VARIABLES, *(f"{prefix}A" for prefix in DEVICE_PREFIXES)]
HARMLESS = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "ROCR_VISIBLE_DEVICES"]
ALL = {"value": "all"}
OF_A_SECRET = {"valueFrom": {"secretKeyRef": {"name": "gpus", "key": "all"}}}


def asking(*env: Manifest) -> ModelDeployment:
    container = {"name": "engine", "image": "engine:v1", "args": ["--model=a"], "env": list(env)}
    engines = [{"name": "main", "members": [{"template": {"spec": {"containers": [container]}}}]}]
    metadata = {"name": "a", "namespace": "ml-team", "uid": "uid-of-a"}
    return ModelDeployment.parse(
        {"metadata": metadata, "spec": {"replicas": 1, "template": {"spec": {"engines": engines}}}}
    )


def environment(deployment: ModelDeployment, *, claims: int = 1, **pods: Any) -> list[Manifest]:
    """The engine's, on a cluster that allows what `pods` says."""
    spec = {"cluster": {"source": "Existing"}, "isolation": {"pods": pods}}
    cluster = InferenceCluster.parse({"metadata": {"name": "b"}, "spec": spec})
    claimed = (Claim("gpu", "gpu.nvidia.com", claims, ("true",)),) if claims else ()
    placed = (EnginePlacement("main", (MemberPlacement("Standalone", "h100", 1, claimed),)),)
    written = render_replica(deployment, Placement("b", 0, placed), cluster)
    replica = ModelReplica.parse({**written, "metadata": {**written["metadata"], "uid": "uid-of-replica"}})
    rendered = render_model_replica(replica, Context("uid-of-ml-team", frozenset(), isolation=Isolation()))
    assert not isinstance(rendered, CannotRender)
    (workload,) = [one for one in rendered if one["kind"] == "Deployment"]
    return workload["spec"]["template"]["spec"]["containers"][0]["env"]


@pytest.mark.parametrize("claims", [0, 1])
@pytest.mark.parametrize("origin", [ALL, OF_A_SECRET], ids=["value", "valueFrom"])
@pytest.mark.parametrize("name", GIVING)
def test_a_deployment_does_not_set_what_a_runtime_gives_devices_by(name: str, origin: Manifest, claims: int) -> None:
    found = environment(asking({"name": name, **origin}, {"name": name, **ALL}), claims=claims)

    assert [one for one in found if one["name"] == name] == (
        [{"name": name, "value": NOTHING[name]}] if name in NOTHING else []
    )


def test_what_an_image_says_is_taken_back() -> None:
    """Images with CUDA say `all`, and whoever claims nothing runs one, too."""
    found = {one["name"]: one["value"] for one in environment(asking(), claims=0)}

    assert found.items() >= NOTHING.items()


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_the_libraries_of_the_engine_read_goes_through(name: str) -> None:
    assert {"name": name, "value": "0"} in environment(asking({"name": name, "value": "0"}))


def test_what_is_left_out_is_told_with_the_field_that_allows_it() -> None:
    told = not_allowed(asking({"name": "NVIDIA_VISIBLE_DEVICES", **ALL}), None)

    assert [str(one) for one in told] == ["variable NVIDIA_VISIBLE_DEVICES (allowedVariables)"]


def test_a_cluster_lets_through_what_it_allows_by_name() -> None:
    found = environment(
        asking({"name": "NVIDIA_VISIBLE_DEVICES", **ALL}, {"name": "AMD_VISIBLE_DEVICES", **ALL}),
        allowedVariables=["NVIDIA_VISIBLE_DEVICES"],
    )

    assert {one["name"]: one["value"] for one in found}.items() >= {
        **NOTHING,
        "NVIDIA_VISIBLE_DEVICES": "all",
    }.items()
