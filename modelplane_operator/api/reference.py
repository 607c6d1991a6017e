"""A kind as a page of documentation: what its CustomResourceDefinition says, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from kubeloop.condition_types import ConditionType
from kubeloop.objects import Manifest
from modelplane_operator.api import Kind, crd
from modelplane_operator.api.remedies import REMEDIES


@dataclass(frozen=True, slots=True)
class Field:
    """One field, by its path from the root."""

    path: str
    schema: Manifest
    required: bool

    @property
    def type(self) -> str:
        return _type(self.schema)

    @property
    def limits(self) -> str:
        """Everything that a value is held to, in words."""
        return "; ".join(filter(None, (crd.choice(self.schema), crd.limits(self.schema))))


def page(kind: Kind, example: str) -> str:
    """The page of a kind, in Markdown."""
    of = kind.definition
    schema = crd.schema(kind)
    properties = schema["properties"]
    whole = Field("metadata.name", {name: value for name, value in schema.items() if name == crd.RULES}, required=True)
    fields = [*_fields("spec", properties["spec"], required=True), *_fields("status", properties["status"])]
    shown, wide = (", ".join(one.name for one in crd.columns(kind) if one.wide is more) for more in (False, True))
    return "\n".join(
        [
            f"# {of.kind}",
            "",
            "<!-- Written by `make crds` from the models; edit those. -->",
            "",
            schema["description"],
            "",
            f"`{of.api_version}`, {'cluster-scoped' if of.scope == 'Cluster' else 'namespaced'}; "
            f"`kubectl get {of.short}` shows {shown}{f', and with `-o wide` {wide}' if wide else ''}."
            + (" `kubectl scale` and autoscalers work on it." if of.scale else ""),
            "",
            "## Example",
            "",
            "```yaml",
            example.strip(),
            "```",
            "",
            "## Fields",
            "",
            "| field | type | default | limits | meaning |",
            "|---|---|---|---|---|",
            *(_row(field) for field in fields),
            "",
            *_rules([whole, *fields]),
            "## Conditions",
            "",
            "| type | status | reason | meaning | what to do |",
            "|---|---|---|---|---|",
            *(
                f"| {condition.__name__} | {reason.status} | {reason.reason} | {reason.meaning} | {_remedy(reason)} |"
                for condition in of.conditions
                for reason in condition
            ),
            "",
        ]
    )


def _remedy(reason: ConditionType) -> str:
    found = REMEDIES.get(reason)
    return (f"{found.do} [More](../{found.page})" if found.page else found.do) if found else ""


def _row(field: Field) -> str:
    default = f"`{json.dumps(field.schema['default'])}`" if "default" in field.schema else ""
    name = f"**`{field.path}`**" if field.required else f"`{field.path}`"
    cells = (name, field.type, default, field.limits, field.schema.get("description", ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _rules(fields: list[Field]) -> list[str]:
    """What is refused beyond the limits of single fields, and what the API server then says."""
    rows = [
        f"| `{path}` | {rule['message'].replace('|', chr(92) + '|')} |"
        for field in fields
        for path, schema in ((field.path, field.schema), (f"{field.path}[]", _inner(field.schema)))
        for rule in schema.get("x-kubernetes-validations", ())
    ]
    return ["## Rules", "", "| of | what the API server says |", "|---|---|", *rows, ""] if rows else []


def _fields(path: str, schema: Manifest, *, required: bool = False) -> Iterator[Field]:
    """The field and all below it, in the order of the schema. What is alike for every kind is one row."""
    yield Field(path, schema, required)
    if path in ("spec.crossplane", "status.conditions"):
        return
    inner = _inner(schema)
    prefix = f"{path}[]." if inner else f"{path}."
    of = inner or schema
    for name, child in of.get("properties", {}).items():
        yield from _fields(f"{prefix}{name}", child, required=name in of.get("required", ()))


def _inner(schema: Manifest) -> Manifest:
    """What a list or a map is made of."""
    return schema.get("items") or schema.get("additionalProperties") or {}


def _type(schema: Manifest) -> str:
    match schema["type"]:
        case "array":
            return f"list of {_type(schema['items'])}"
        case "object" if "additionalProperties" in schema:
            return f"map of {_type(schema['additionalProperties'])}"
        case name:
            return str(name)
