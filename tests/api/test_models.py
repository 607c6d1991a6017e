"""The models read what users write, and give it back as it was."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kubeloop.resource import parse_stored
from modelplane_operator.api import KINDS, Kind, ModelCache, ModelDeployment
from modelplane_operator.api.isolation import Isolation
from tests.api.contract import rich
from tests.support.bounds import Case, cases
from tests.support.manifests import ABSENT, EXAMPLES, ROOT, Manifest, change, load

BY_NAME = {kind.definition.kind: kind for kind in KINDS}
OBJECTS = [
    pytest.param(manifest, id=f"{file.relative_to(ROOT)} {manifest['kind']} {manifest['metadata']['name']}")
    for file in EXAMPLES
    for manifest in load(file)
]
RICH = [pytest.param(manifest, id=name) for name, manifest in rich().items()]

STORED = {
    "uid": "4f2f6f6e-0b6f-4a39-9a39-0c9a7a0a3b11",
    "generation": 3,
    "resourceVersion": "812",
    "creationTimestamp": "2026-11-21T11:40:00Z",
    "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
}


def kind_of(manifest: Manifest) -> Kind:
    return BY_NAME[manifest["kind"]]


@pytest.mark.parametrize("manifest", [*OBJECTS, *RICH])
def test_object_comes_back_as_it_was_written(manifest: Manifest) -> None:
    assert kind_of(manifest).parse(manifest).to_manifest() == manifest


@pytest.mark.parametrize("manifest", RICH)
def test_object_comes_back_as_the_server_stores_it(manifest: Manifest) -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Available",
        "message": "",
        "lastTransitionTime": "2026-11-21T11:40:00Z",
        "observedGeneration": 3,
    }
    stored = {
        **manifest,
        "metadata": {**manifest["metadata"], **STORED},
        "spec": {
            **manifest["spec"],
            "crossplane": {
                "compositionUpdatePolicy": "Manual",
                "compositionRef": {"name": "a"},
                "resourceRefs": [{"apiVersion": "v1", "kind": "Secret"}],
            },
        },
        "status": {**manifest.get("status", {}), "conditions": [condition]},
    }

    assert kind_of(manifest).parse(stored).to_manifest() == stored


@pytest.mark.parametrize("manifest", RICH)
def test_object_with_a_field_of_a_newer_version_still_reads(manifest: Manifest) -> None:
    newer = change(manifest, "spec.addedLater", {"some": "thing"})

    assert kind_of(manifest).parse(newer).to_manifest() == manifest


def test_empty_and_absent_stay_apart() -> None:
    flat = rich()["ModelDeployment flat"]
    empty = change(flat, "spec.clusterSelector", {"matchLabels": {}})
    absent = change(flat, "spec.clusterSelector", ABSENT)

    assert ModelDeployment.parse(empty).to_manifest() == empty
    assert ModelDeployment.parse(absent).to_manifest() == absent


def test_both_shapes_of_a_deployment_mean_the_same() -> None:
    flat = rich()["ModelDeployment flat"]
    body = {field: flat["spec"][field] for field in ("clusterSelector", "modelCacheRef", "serving", "engines")}
    nested = {**flat, "spec": {"replicas": 1, "template": {"spec": body}}}

    assert ModelDeployment.parse(flat).replica == ModelDeployment.parse(nested).replica


def test_object_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"modelplane.ai/v1alpha1 ModelDeployment, not .* ModelCache"):
        ModelCache.parse(rich()["ModelDeployment"])


BEYOND = [
    case
    for case in cases()
    if case.keyword not in {"enum", "keys", "required", "minProperties"}
    # There are fewer names than that.
    and str(case) not in {"ServingStack spec.components maxItems", "InferenceCluster spec.stack.components maxItems"}
]


@pytest.mark.parametrize("case", BEYOND, ids=str)
def test_an_object_from_before_its_bounds_is_read_and_not_admitted(case: Case) -> None:
    kind, base = kind_of(rich()[case.of]), rich()[case.of]
    before = change(base, case.path, case.refused)

    assert kind.parse(before).to_manifest() == before
    assert kind.parse_bounded(base) == kind.parse(base)
    with pytest.raises(ValidationError):
        kind.parse_bounded(before)


def test_a_part_of_an_object_from_before_its_bounds_is_read() -> None:
    many = [f"team-{number}" for number in range(17)]
    before = {"networkPolicy": {"gatewayNamespaces": many}}

    assert parse_stored(Isolation, before).to_manifest() == before
    with pytest.raises(ValidationError):
        Isolation.model_validate(before)


def test_models_cannot_be_changed() -> None:
    cache = ModelCache.parse(rich()["ModelCache"])

    with pytest.raises(ValidationError, match="frozen"):
        cache.metadata.name = "other"
