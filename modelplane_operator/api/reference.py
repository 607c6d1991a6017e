"""The kinds as pages of documentation: what the CustomResourceDefinitions say, for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kubeloop.condition_types import ConditionType, Ready, Synced
from kubeloop.objects import Manifest
from modelplane_operator.api import Kind, crd
from modelplane_operator.api.remedies import REMEDIES

# Fields and conditions that are alike for every kind stand on one page.
COMMON = ("spec.crossplane", "status.conditions", "status.summary")
COMMON_CONDITIONS = (Synced, Ready)
# A block of fewer rows than this is repeated on the page of each kind that has it.
WORTH_A_LINK = 4

_WRITTEN = "<!-- Written by `make crds` from the models; edit those. -->"
# What two equal blocks may differ in.
_OWN = ("description", "default")
_FIELDS = ("| field (**required**) | value | meaning |", "|---|---|---|")


@dataclass(frozen=True, slots=True)
class Field:
    """One field, by its path from the root."""

    path: str
    schema: Manifest
    required: bool
    same_as: str = ""
    """Where the fields below it are described, if not in the following rows."""

    @property
    def value(self) -> str:
        """The type, everything that a value is held to, and the default."""
        choice = crd.choice(self.schema)
        default = f"default `{json.dumps(self.schema['default'])}`" if "default" in self.schema else ""
        limits = crd.limits(self.schema).replace("matches `", "`")
        return "; ".join(filter(None, (choice or _type(self.schema), limits, default)))


class Reference:
    """The pages of all kinds. A block of fields, or a condition, that an earlier page has is a link to it."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = tuple(kinds)
        self._blocks: dict[str, tuple[str, str, int]] = {}  # by their schema: kind, path and number of rows
        self._conditions: dict[type[ConditionType], str] = dict.fromkeys(COMMON_CONDITIONS, "")
        properties = crd.schema(self._kinds[0])["properties"]
        self._common: dict[str, Manifest] = {
            path: properties[root]["properties"][name] for path in COMMON for root, _, name in (path.partition("."),)
        }

    def page(self, kind: Kind, example: str) -> str:
        """Return the page of a kind, in Markdown; to be called in the order of the kinds."""
        of = kind.definition
        schema = crd.schema(kind)
        fields = self._fields_of(kind)
        names = Field("metadata.name", {crd.RULES: schema.get(crd.RULES, [])}, required=True)
        narrow, wide = (
            ", ".join(column.name for column in crd.columns(kind) if column.wide is more) for more in (False, True)
        )
        return "\n".join(
            [
                f"# {of.kind}",
                "",
                _WRITTEN,
                "",
                schema["description"],
                "",
                f"`{of.api_version}`, {'cluster-scoped' if of.scope == 'Cluster' else 'namespaced'}; "
                f"`kubectl get {of.short}` shows {narrow}{f', and with `-o wide` {wide}' if wide else ''}."
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
                "In addition to [those of every kind](README.md#fields):",
                "",
                *_FIELDS,
                *map(_row, fields),
                "",
                *_rules([names, *fields]),
                "## Conditions",
                "",
                *self._condition_lines(kind),
                "",
            ]
        )

    def index(self) -> str:
        """Return the page of what all kinds have in common, with a link to the page of each."""
        fields = [
            *(Field(path, schema, required=False) for path, schema in self._common.items()),
            *_list_fields("status.conditions", self._common["status.conditions"]),
        ]
        return "\n".join(
            [
                "# Reference",
                "",
                _WRITTEN,
                "",
                "| kind | short name | what it is |",
                "|---|---|---|",
                *(
                    f"| [{of.kind}]({of.kind.lower()}.md) | `{of.short}` | {crd.schema(kind)['description']} |"
                    for kind in self._kinds
                    for of in (kind.definition,)
                ),
                "",
                "## Fields",
                "",
                "Every kind has these. On all pages, `[]` stands for each item of a list or map, `1..63` for a range "
                "that includes both ends, and an expression in `^...$` has to match the value.",
                "",
                *_FIELDS,
                *map(_row, fields),
                "",
                "## Conditions",
                "",
                "Every kind has these.",
                "",
                *_conditions(COMMON_CONDITIONS),
                "",
            ]
        )

    def _fields_of(self, kind: Kind) -> list[Field]:
        """Return the fields of a kind in the order of its schema, without those of every kind."""
        properties = crd.schema(kind)["properties"]
        name = kind.definition.kind
        return [
            *self._below(name, Field("spec", properties["spec"], required=True)),
            *self._below(name, Field("status", properties["status"], required=False)),
        ]

    def _below(self, kind: str, field: Field) -> list[Field]:
        """Return a field and all below it, or the field alone if those are described elsewhere."""
        if field.path in COMMON and field.schema["description"] == self._common[field.path]["description"]:
            return []
        children = _list_fields(field.path, field.schema)
        if not children:
            return [field]
        block = json.dumps({name: value for name, value in field.schema.items() if name not in _OWN}, sort_keys=True)
        of, path, rows = self._blocks.get(block, ("", "", 0))
        if of == kind:
            return [replace(field, same_as=f"As `{path}`.")]
        if rows >= WORTH_A_LINK:
            return [replace(field, same_as=f"As [`{path}` of {of}]({of.lower()}.md#fields).")]
        below = [row for child in children for row in self._below(kind, child)]
        self._blocks[block] = (kind, field.path, len(below))
        return [field, *below]

    def _condition_lines(self, kind: Kind) -> Iterator[str]:
        """Yield the table of a kind's conditions, and the links to those that are described elsewhere."""
        name = kind.definition.kind
        elsewhere: dict[str, list[str]] = {}
        for condition in kind.definition.conditions:
            elsewhere.setdefault(self._conditions.setdefault(condition, name), []).append(f"`{condition.__name__}`")
        links = [
            f"- {', '.join(types)}: see [{of or 'every kind'}]({of.lower() or 'README'}.md#conditions)."
            for of, types in elsewhere.items()
            if of != name
        ]
        yield from links
        own = [condition for condition in kind.definition.conditions if self._conditions[condition] == name]
        if own:
            yield ""
            yield from _conditions(own)


def _conditions(types: Iterable[type[ConditionType]]) -> Iterator[str]:
    yield "| condition | reason | meaning | what to do |"
    yield "|---|---|---|---|"
    for condition in types:
        for reason in condition:
            yield f"| {reason.type}={reason.status} | {reason.reason} | {reason.meaning} | {_remedy(reason)} |"


def _remedy(reason: ConditionType) -> str:
    found = REMEDIES.get(reason)
    return (f"{found.do} [More](../{found.page})" if found.page else found.do) if found else ""


def _row(field: Field) -> str:
    name = f"**`{field.path}`**" if field.required else f"`{field.path}`"
    cells = (name, field.value, " ".join(filter(None, (field.schema.get("description", ""), field.same_as))))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _rules(fields: list[Field]) -> list[str]:
    """Return the table of what is refused beyond the limits of single fields, and what the API server then says."""
    paths: dict[str, list[str]] = {}
    for field in fields:
        for path, schema in ((field.path, field.schema), (f"{field.path}[]", _inner(field.schema))):
            for rule in schema.get(crd.RULES, ()) if not field.same_as else ():
                paths.setdefault(rule["message"].replace("|", chr(92) + "|"), []).append(f"`{path}`")
    rows = [f"| {', '.join(of)} | {message} |" for message, of in paths.items()]
    return ["## Rules", "", "| of | what the API server says |", "|---|---|", *rows, ""] if rows else []


def _list_fields(path: str, schema: Manifest) -> list[Field]:
    """Return the fields of an object, or of the items of a list or map."""
    inner = _inner(schema)
    of = inner or schema
    return [
        Field(f"{path}{'[]' if inner else ''}.{name}", child, name in of.get("required", ()))
        for name, child in of.get("properties", {}).items()
    ]


def _inner(schema: Manifest) -> Manifest:
    """Return what a list or a map is made of."""
    return schema.get("items") or schema.get("additionalProperties") or {}


def _type(schema: Manifest) -> str:
    match schema["type"]:
        case "array":
            return f"list of {_type(schema['items'])}"
        case "object" if "additionalProperties" in schema:
            return f"map of {_type(schema['additionalProperties'])}"
        case name:
            return str(name)
