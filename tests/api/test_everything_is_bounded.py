"""Nothing that a user writes is without a bound: walks the schemas, and tells what it finds by its path."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from modelplane_operator.api import KINDS, Kind, ModelDeployment, ModelService, crd
from modelplane_operator.api.bounds import KEYS
from modelplane_operator.api.metadata import ANNOTATION_KEYS, LABEL_KEYS
from tests.support.manifests import Manifest

KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)

# Every exception says why it needs no bound.
UNBOUNDED = {
    r"ServingStack spec\.components\[\]\.values": "a chart's own; what is in it only the size of the object bounds",
    r"InferenceCluster spec\.stack\.components\[\]\.values": "the same",
    r"ServingStack spec\.extraCharts\[\]\.values": "the same",
}
KEY_RULES = {rule.expression for rule in (KEYS, LABEL_KEYS, ANNOTATION_KEYS)}

# A name of an object, wherever one is asked for, is held to what an object can be called.
NAMES = re.compile(
    r"(secretRef|identitySecretRef|authSecret|secretKeyRef|configMapKeyRef|imagePullSecrets\[\]|modelCacheRef"
    r"|credentials|spec\.secrets\[\])\.name$"
    r"|(clusterName|className|deviceClassName|storageClassName|serviceAccountName|priorityClassName)$"
)
KEYS_OF_DATA = re.compile(r"([sS]ecretRef|authSecret|secretKeyRef|configMapKeyRef|spec\.secrets\[\])\.key$")


def without_bounds(path: str, schema: Manifest, rules: frozenset[str] = frozenset()) -> Iterator[str]:
    """What is wrong with a schema and all below it; `rules` are those of the object that a field is of."""
    own = frozenset(rule["rule"] for rule in schema.get("x-kubernetes-validations", ()))
    match schema["type"]:
        case "string" if not {"maxLength", "enum"} & schema.keys():
            yield f"{path}: no maxLength"
        case "integer" | "number" if not {"minimum", "maximum"} <= schema.keys() and schema.get("format") != "int64":
            yield f"{path}: no minimum and maximum"
        case "array":
            if "maxItems" not in schema:
                yield f"{path}: no maxItems"
            yield from without_bounds(f"{path}[]", schema["items"])
        case "object":
            yield from _of_a_map(path, schema, own | rules)
            for name, child in schema.get("properties", {}).items():
                yield from without_bounds(f"{path}.{name}", child, own)
        case _:
            pass


def _of_a_map(path: str, schema: Manifest, rules: frozenset[str]) -> Iterator[str]:
    inner = schema.get("additionalProperties")
    if inner is None and "properties" not in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
        return  # nothing may be in it
    if "properties" not in schema:
        if "maxProperties" not in schema:
            yield f"{path}: no maxProperties"
        if not rules & KEY_RULES:
            yield f"{path}: its keys have no bound"
    if inner:
        yield from without_bounds(f"{path}{{}}", inner)


def fields(path: str, schema: Manifest) -> Iterator[tuple[str, Manifest]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from fields(f"{path}.{name}", child)
    if "items" in schema:
        yield from fields(f"{path}[]", schema["items"])


def excepted(kind: Kind, found: str) -> bool:
    return any(re.match(f"{place}: ", f"{kind.definition.kind} {found}") for place in UNBOUNDED)


@KIND
def test_everything_that_a_user_writes_is_bounded(kind: Kind) -> None:
    found = without_bounds("spec", crd.schema(kind)["properties"]["spec"])

    assert [one for one in found if not excepted(kind, one)] == []


@KIND
def test_every_name_of_an_object_is_held_to_what_an_object_can_be_called(kind: Kind) -> None:
    patterns = {
        path: schema.get("pattern", "")
        for path, schema in fields("spec", crd.schema(kind)["properties"]["spec"])
        if NAMES.search(path) and "crossplane" not in path
    }

    for path, pattern in patterns.items():
        assert re.search(pattern, "a-1.b"), path
        for name in ("../../team-b/secrets/openai", "..", ".", "a/b", "a%2Fb", "A", "a_b", "a b", "-a", "a.", "a?"):
            assert not re.search(pattern, name), f"{path} takes {name!r}"


@KIND
def test_every_key_of_a_secret_is_held_to_what_a_key_can_be(kind: Kind) -> None:
    for path, schema in fields("spec", crd.schema(kind)["properties"]["spec"]):
        if KEYS_OF_DATA.search(path):
            assert re.search(schema["pattern"], "..Token-1_a.pem")
            assert not re.search(schema["pattern"], "a/b"), path


def test_what_has_no_bound_is_found() -> None:
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "list": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }

    assert [*without_bounds("spec", schema)] == [
        "spec.text: no maxLength",
        "spec.list: no maxItems",
        "spec.list[]: no minimum and maximum",
        "spec.map: no maxProperties",
        "spec.map: its keys have no bound",
        "spec.map{}: no maxLength",
    ]


def test_the_names_that_matter_are_looked_at() -> None:
    """A pattern of this test that finds nothing would hold of anything."""
    found = {path for kind in KINDS for path, _ in fields("spec", crd.schema(kind)["properties"]["spec"])}

    assert len([path for path in found if NAMES.search(path)]) >= 20
    assert len([path for path in found if KEYS_OF_DATA.search(path)]) >= 8


@pytest.mark.parametrize("kind", [ModelDeployment, ModelService], ids=lambda kind: kind.definition.kind)
def test_a_definition_fits_into_an_annotation(kind: Kind) -> None:
    """`kubectl apply` writes all of it into one, of at most 256 KiB."""
    assert len(crd.to_yaml(kind)) < 200_000
