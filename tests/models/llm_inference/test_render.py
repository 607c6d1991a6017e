"""What an LLMInference becomes in the fleet is what the kinds of the fleet admit."""

from __future__ import annotations

import pytest

from modelplane_operator.api import LLMInference, ModelDeployment, ModelService
from modelplane_operator.models.llm_inference.render import render_in_fleet
from modelplane_operator.models.llm_inference.render_deployment import SELECTING
from modelplane_operator.scheduling import budget


@pytest.mark.parametrize("gpu", [1, 16])
def test_the_deployment_and_the_service_are_admitted_and_find_each_other(gpu: int) -> None:
    metadata = {"name": "qwen", "namespace": "ml-team", "uid": "mine"}
    spec = {"model": "Qwen/Qwen3-8B", "gpu": gpu, "placement": "Fleet"}

    deployment, service = render_in_fleet(LLMInference.parse({"metadata": metadata, "spec": spec}), 20)

    read = ModelDeployment.parse_bounded(deployment)
    assert ModelService.parse_bounded(service).spec.endpoints[0].selector.match_labels == {SELECTING: "qwen"}
    assert deployment["spec"]["template"]["metadata"]["labels"] == {SELECTING: "qwen"}
    assert len(tuple(budget.texts(read.replica))) == 1
