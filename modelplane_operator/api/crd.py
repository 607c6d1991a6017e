"""A kind as a CustomResourceDefinition: pydantic's JSON schema, made structural."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema

from kubeloop.objects import Manifest
from kubeloop.resource import Column, Resource

# crossplane: so that `kubectl get crossplane` goes on listing everything for those who are used to it.
CATEGORIES = ("crossplane", "modelplane")

SHARED_COLUMNS = (
    Column("SYNCED", ".status.conditions[?(@.type=='Synced')].status"),
    Column("READY", ".status.conditions[?(@.type=='Ready')].status"),
    Column("AGE", ".metadata.creationTimestamp", "date"),
)
SUMMARY = Column("SUMMARY", ".status.summary", wide=True)
MESSAGE = Column("MESSAGE", ".status.conditions[?(@.type=='Ready')].message", wide=True)

# The keyword of the least, that of the most, and what they count: one of it, and several.
_RANGES = (
    ("minLength", "maxLength", " character", " characters"),
    ("minimum", "maximum", "", ""),
    ("minItems", "maxItems", " item", " items"),
    ("minProperties", "maxProperties", " entry", " entries"),
)

RULES = "x-kubernetes-validations"

# Names of our objects become label values, which may have 63 characters.
METADATA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 63}}}


def definition(kind: type[Resource[Any, Any]]) -> Manifest:
    """The CustomResourceDefinition of a kind, complete."""
    of = kind.definition
    scale = of.scale and {
        "specReplicasPath": of.scale.replicas,
        "statusReplicasPath": of.scale.observed,
        "labelSelectorPath": of.scale.selector,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": of.name},
        "spec": {
            "group": of.group,
            "scope": of.scope,
            "names": {
                "kind": of.kind,
                "listKind": f"{of.kind}List",
                "plural": of.plural,
                "singular": of.kind.lower(),
                "shortNames": [of.short],
                "categories": list(CATEGORIES),
            },
            "versions": [
                {
                    "name": of.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, **({"scale": scale} if scale else {})},
                    "additionalPrinterColumns": [
                        {
                            "name": column.name,
                            "type": column.type,
                            "jsonPath": column.path,
                            **({"priority": 1} if column.wide else {}),
                        }
                        for column in columns(kind)
                    ],
                    "schema": {"openAPIV3Schema": _add_descriptions(schema(kind))},
                }
            ],
        },
    }


def columns(kind: type[Resource[Any, Any]]) -> tuple[Column, ...]:
    """What `kubectl get` shows of a kind: the kind's own columns, then those of all."""
    status = schema(kind)["properties"]["status"]["properties"]
    summary = (SUMMARY,) if status.get("summary", {}).get("type") == "string" else ()
    return (*kind.definition.columns, *SHARED_COLUMNS, *summary, MESSAGE)


class _Plain(yaml.SafeDumper):
    """YAML without anchors: a CRD is read by people."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def to_yaml(kind: type[Resource[Any, Any]]) -> str:
    """The CustomResourceDefinition of a kind, as a file holds it."""
    return yaml.dump(definition(kind), Dumper=_Plain, sort_keys=False, width=120)


def schema(kind: type[Resource[Any, Any]]) -> Manifest:
    """The structural schema of a kind."""
    given = kind.model_json_schema(by_alias=True, schema_generator=_AsDeclared)
    whole = _structural(given, given.get("$defs", {}))
    return {
        "type": "object",
        "description": whole["description"],
        "required": ["spec"],
        "properties": {
            "metadata": METADATA,
            "spec": whole["properties"]["spec"],
            "status": whole["properties"]["status"],
        },
        **{keyword: whole[keyword] for keyword in (RULES,) if keyword in whole},
    }


def limits(schema: Manifest) -> str:
    """What a value is held to, in words."""
    inner: Manifest = schema.get("items") or schema.get("additionalProperties") or {}
    each = ", ".join([*_choice(inner), *_bounds(inner)]) if "properties" not in inner else ""
    keys = schema.get("x-kubernetes-list-map-keys")
    unique = [f"unique by {' and '.join(keys)}"] if keys else []
    return "; ".join([*_bounds(schema), *([f"each {each}"] if each else []), *unique])


def choice(schema: Manifest) -> str:
    """Which values there are, where they are named."""
    return "".join(_choice(schema))


def _choice(schema: Manifest) -> list[str]:
    values: list[Any] = schema.get("enum", [])
    return [f"one of {', '.join(f'`{value}`' for value in values)}"] if values else []


def _bounds(schema: Manifest) -> Iterator[str]:
    """Yield ranges, such as `1..253 characters`, and the pattern."""
    for least, most, single, unit in _RANGES:
        if most in schema:
            lower, upper = schema[least] if most == "maximum" else schema.get(least, 0), schema[most]
            yield f"{lower}..{upper}{unit}" if lower != upper else f"{upper}{single if upper == 1 else unit}"
    if "minProperties" in schema and "maxProperties" not in schema:  # a struct whose fields are all optional
        yield f"at least {schema['minProperties']} field"
    if "pattern" in schema:
        yield f"matches `{schema['pattern']}`"


def _add_descriptions(schema: Manifest) -> Manifest:
    """The schema with defaults and limits in its descriptions, too: `kubectl explain` shows nothing else of them."""
    held = limits(schema)
    told = [
        schema.get("description", ""),
        f"Default: {json.dumps(schema['default'])}." if "default" in schema else "",
        f"{held[0].upper()}{held[1:]}." if held else "",
    ]
    below: Manifest = {}
    for keyword, value in schema.items():
        match keyword:
            case "properties":  # the API server takes no words on metadata
                below[keyword] = {
                    name: child if child is METADATA else _add_descriptions(child) for name, child in value.items()
                }
            case "items" | "additionalProperties" if "properties" in value:
                below[keyword] = _add_descriptions(value)
            case _:
                below[keyword] = value
    return below | ({"description": text} if (text := " ".join(filter(None, told))) else {})


class _AsDeclared(GenerateJsonSchema):
    """Keywords in the order they were declared in: it is the order in which people read them."""

    def sort(self, value: Manifest, parent_key: str | None = None) -> Manifest:
        return value


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Manifest:
    """A schema node without references, nulls, titles and empty defaults: none of them exist in a structural schema."""

    def nested(child: Mapping[str, Any]) -> Manifest:
        return _structural(child, definitions)

    plain = _resolve_references(node, definitions)
    result: Manifest = {}
    for keyword, value in plain.items():
        match keyword:
            case "title" | "$defs":
                pass
            case "description":
                result[keyword] = " ".join(value.split())
            case "default" if value is None or value in ([], {}):
                pass
            case "additionalProperties" if isinstance(value, bool):
                pass
            case "const":
                result["enum"] = [value]
            case "properties":
                result[keyword] = {name: nested(child) for name, child in value.items()}
            case "items" | "additionalProperties":
                result[keyword] = nested(value)
            case _:
                result[keyword] = value
    return result


def _resolve_references(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Manifest:
    """The node with its reference, or the one alternative beside null, written out; its own keywords win."""
    own = {keyword: value for keyword, value in node.items() if keyword not in ("$ref", "anyOf")}
    if "$ref" in node:
        return {**_resolve_references(definitions[node["$ref"].rpartition("/")[2]], definitions), **own}
    if "anyOf" in node:
        (alternative,) = (choice for choice in node["anyOf"] if choice != {"type": "null"})
        return {**_resolve_references(alternative, definitions), **own}
    return own
