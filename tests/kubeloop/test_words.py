"""Sentences put together from clauses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kubeloop.invalid import describe_invalid
from kubeloop.words import sentence
from modelplane_operator.api import ModelDeployment
from tests.support.builders import deployment


@pytest.mark.parametrize(
    ("clauses", "text"),
    [
        (("chart metallb is not installed",), "Chart metallb is not installed"),
        (("", "no node is free", "1 waits"), "No node is free; 1 waits"),
        (("s-cli/toobig: 0 of 3",), "s-cli/toobig: 0 of 3"),
        (("spec.memory says 200Gi",), "spec.memory says 200Gi"),
        (("worker-1 does not answer",), "worker-1 does not answer"),
        (("nodeCount is 3",), "nodeCount is 3"),
        (("engine vllm: pool l40s",), "Engine vllm: pool l40s"),
        (("waits: worker-1",), "Waits: worker-1"),
        ((), ""),
    ],
)
def test_a_sentence_has_a_capital_unless_it_begins_with_a_name(clauses: tuple[str, ...], text: str) -> None:
    assert sentence(*clauses) == text


def test_a_field_that_is_wrong_is_called_a_field() -> None:
    manifest = deployment().to_manifest()
    manifest["spec"]["replicas"] = "three"
    with pytest.raises(ValidationError) as error:
        ModelDeployment.parse(manifest)
    assert describe_invalid(error.value).startswith("field spec.replicas: ")
