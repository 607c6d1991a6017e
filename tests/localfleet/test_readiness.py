"""Which pods are ready again when their node is heard again."""

from __future__ import annotations

from typing import Any

import pytest

from localfleet.cloud.readiness import is_forgotten
from localfleet.engine.settings import NODE_DOWN

Manifest = dict[str, Any]


def conditions(**said: str) -> list[Manifest]:
    return [{"type": kind, "status": status} for kind, status in said.items()]


def pod(*, container: str = "any", phase: str = "Running", gates: tuple[str, ...] = (), **said: str) -> Manifest:
    spec = {
        "nodeName": "n",
        "containers": [{"name": container}],
        "readinessGates": [{"conditionType": g} for g in gates],
    }
    found = conditions(**{"Ready": "False", "ContainersReady": "True", **said})
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase, "conditions": found}}


def node(*, ready: str = "True", down: str = "false") -> Manifest:
    return {"metadata": {"annotations": {NODE_DOWN: down}}, "status": {"conditions": conditions(Ready=ready)}}


@pytest.mark.parametrize(
    ("known", "on", "again"),
    [
        pytest.param(pod(), node(), True, id="the node controller took it"),
        pytest.param(pod(Ready="True"), node(), False, id="nobody took it"),
        pytest.param(pod(), node(ready="Unknown"), False, id="the node is still away"),
        pytest.param(pod(), node(down="true"), False, id="the node is to stay away"),
        pytest.param(pod(ContainersReady="False"), node(), False, id="its containers are not ready"),
        pytest.param(pod(phase="Succeeded"), node(), False, id="it has ended"),
        pytest.param(pod(container="engine"), node(), False, id="an engine's simulator says it"),
        pytest.param(pod(gates=("a",)), node(), False, id="a gate is shut"),
        pytest.param(pod(gates=("a",), a="True"), node(), True, id="a gate is open"),
    ],
)
def test_a_pod_is_ready_again_when_nothing_else_is_in_the_way(
    known: Manifest,
    on: Manifest,
    again: bool,  # noqa: FBT001
) -> None:
    assert is_forgotten(known, {("", "n"): on}) == again
    assert not is_forgotten(known, {}), "a node that is gone says nothing"
