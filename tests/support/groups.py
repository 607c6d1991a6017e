"""Which tests run on one worker, one after the other, and which of these groups go first."""

from __future__ import annotations

import pytest

from localfleet import pytest_plugin

STAGE, SECOND_STAGE, FLEET = "the stage", "the second stage", "the fleet"
SHARED = {
    "tests/integration/test_t": SECOND_STAGE,
    "tests/integration/test_w": SECOND_STAGE,
    "tests/integration/test_m": SECOND_STAGE,
    "tests/integration/": STAGE,
    "tests/routing/gateway/test_path.py": FLEET,
    "tests/clusters/cluster/test_clusters.py": FLEET,
    "tests/faults/": FLEET,
    "tests/localfleet/test_fleet.py": FLEET,
}
"""Files that share a fleet, so that it is started once.

Every other file is a group of its own. They come in this order: a folder has a stage, which would be set up again
whenever a file of another came in between.
"""
PARTS = tuple(SHARED)
LONG = (
    STAGE,
    SECOND_STAGE,
    FLEET,
    "tests/routing/gateway/test_hub_gateway.py",
    "tests/clusters/stack/test_controller.py",
    "tests/clusters/cluster/test_joining.py",
    "tests/clouds/test_clouds_on_a_fleet.py",
    "tests/routing/gateway/test_hub_gateway_crashes.py",
    "tests/api/test_bounds.py",
    "tests/operator/test_operator.py",
    "tests/localfleet/test_engine_cluster.py",
    "tests/routing/test_routing.py",
    "tests/routing/gateway/test_gateways.py",
    "tests/test_permissions.py",
    "tests/test_names_of_others.py",
)
"""The groups that take minutes, the longest first: a worker that began one last would run on alone.

A run tells at its end which they were.
"""


COMPUTED = (
    "tests/ask/test_answers",
    "tests/ask/test_discovery",
    "tests/ask/test_rules",
    "tests/clouds/test_cloud_",
    "tests/clouds/test_clouds.py",
    "tests/clouds/test_eks",
    "tests/clouds/test_fences",
    "tests/clouds/test_gke",
    "tests/clouds/test_requests",
    "tests/clouds/test_view",
    "tests/clusters/class_/",
    "tests/clusters/cluster/test_inference_cluster",
    "tests/clusters/cluster/test_mutual_tls",
    "tests/clusters/cluster/test_provisioned",
    "tests/clusters/stack/test_charts",
    "tests/clusters/stack/test_plan",
    "tests/hydrate/test_s",
    "tests/models/cache/",
    "tests/models/deployment/",
    "tests/models/llm_inference/test_plan",
    "tests/models/replica/test_model_replica",
    "tests/models/replica/test_symptoms",
    "tests/operator/test_kept",
    "tests/operator/test_printer_columns",
    "tests/routing/endpoint/test_model_endpoint",
    "tests/routing/endpoint/test_reached",
    "tests/routing/gateway/test_certificates",
    "tests/routing/gateway/test_inference_gateway",
    "tests/routing/service/test_answering",
    "tests/routing/service/test_api_routes",
    "tests/routing/service/test_model_service",
    "tests/routing/service/test_selection",
    "tests/scheduling/",
    "tests/selectors/",
)
"""Files whose tests wait for nobody: they come last, and one worker has them from the start, behind the others."""


def is_computed(group: str) -> bool:
    return group.startswith(COMPUTED)


def group_of(nodeid: str) -> str:
    """The group of a test."""
    part = _part(nodeid)
    return SHARED[PARTS[part]] if part < len(PARTS) else nodeid.partition("::")[0]


def _part(nodeid: str) -> int:
    """The place of a test's file or folder in its group."""
    return next((place for place, start in enumerate(PARTS) if nodeid.startswith(start)), len(PARTS))


def sort(items: list[pytest.Item]) -> None:
    """Bring groups together: the long ones, those that start programs, the others, what computes; each as they came.

    In a group, what needs the fleet comes first: it ends when the next test does not. Those of a stage stay together.
    """
    marked = {group_of(item.nodeid) for item in items if item.get_closest_marker("fleet")}
    groups = dict.fromkeys([*LONG, *(group for item in items if (group := group_of(item.nodeid)) in marked)])
    groups |= dict.fromkeys(sorted(map(group_of, (item.nodeid for item in items)), key=is_computed))
    place = {group: number for number, group in enumerate(groups)}
    items.sort(key=lambda item: (place[group_of(item.nodeid)], not pytest_plugin.needs_fleet(item), _part(item.nodeid)))
