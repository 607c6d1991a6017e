"""Objects out of the schemas of CustomResourceDefinitions: legal more often than not, and never what one expects."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

from tests.support.manifests import Manifest

Schema = dict[str, Any]

HOSTILE_TEXT = (
    "",
    " ",
    "a" * 253,
    "../../etc/passwd",
    "{{ .Values.x }}",
    "$(KEY) ${KEY} `id` ; rm -rf /",
    "ünïcödé-\u202e-\U0001f600",
    "null",
    "-1",
    "9" * 40,
    "1e999",
    "a/b/c",
    "\n\t",
)
HOSTILE_CEL = (
    "",
    "true",
    "1",
    "device",
    'device.driver == "gpu.nvidia.com"',
    "device.attributes",
    'device.attributes["gpu.nvidia.com"].nothing == 1',
    "nobody.knows(1)",
    "(" * 200 + "true" + ")" * 200,
    "!" * 500 + "true",
    "1/0 == 1",
    "[1,2,3].all(x, [1,2,3].all(y, [1,2,3].all(z, x*y*z > 0)))",
    '"a".matches("(a+)+$")',
    '"(((" == "',
    "9223372036854775807 + 1 > 0",
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0',
    'device.driver == "' + "x" * 5000 + '"',
    "device.driver.size() > 0 ? true : 1",
    'semver("1.2.3").isLessThan(semver("nonsense"))',
)
EDGES = (0, 1, -1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63))
FEW = 3


def objects(schema: Schema) -> st.SearchStrategy[Any]:
    """Values of a structural schema. Required fields are there, others perhaps."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from((0, 1, -1, "50%", "http", "1Gi", "nonsense"))
    match schema.get("type"):
        case "object":
            return _mapping(schema)
        case "array":
            most = min(schema.get("maxItems", FEW), max(FEW, schema.get("minItems", 0)))
            return st.lists(objects(schema["items"]), min_size=schema.get("minItems", 0), max_size=most)
        case "string":
            return _text(schema)
        case "integer":
            low, high = schema.get("minimum"), schema.get("maximum")
            edges = [edge for edge in EDGES if (low is None or edge >= low) and (high is None or edge <= high)]
            return st.sampled_from([*edges, *(each for each in (low, high) if each is not None)])
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case _:
            return st.sampled_from(({}, {"strange": {"deep": [1, "two", None]}}))


def _mapping(schema: Schema) -> st.SearchStrategy[Manifest]:
    if "properties" not in schema:
        values = schema.get("additionalProperties")
        inner = objects(values) if isinstance(values, dict) else st.just("anything")
        return st.dictionaries(st.sampled_from(("a", "b.example.com/c", "D-1", "x" * 63)), inner, max_size=FEW)
    required = set(schema.get("required", []))
    fields = {name: _named(name, inner) for name, inner in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: inner for name, inner in fields.items() if name in required},
        optional={name: inner for name, inner in fields.items() if name not in required},
    )


def _named(name: str, schema: Schema) -> st.SearchStrategy[Any]:
    if name == "cel":
        return st.sampled_from([text for text in HOSTILE_CEL if len(text) <= schema.get("maxLength", 10_000)])
    return objects(schema)


def _text(schema: Schema) -> st.SearchStrategy[str]:
    if schema.get("format") == "date-time":
        return st.sampled_from(("2020-01-01T00:00:00Z", "9999-12-31T23:59:59Z"))
    least, most = schema.get("minLength", 0), schema.get("maxLength", 300)
    if "pattern" in schema:
        legal = st.from_regex(re.compile(schema["pattern"], re.ASCII)).map(str.strip)
        return legal.filter(lambda text: least <= len(text) <= most)
    return st.sampled_from([text for text in (*HOSTILE_TEXT, "plain", "model") if least <= len(text) <= most])
