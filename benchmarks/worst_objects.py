"""The worst objects of each kind: everything that users write, each part as large as an API server lets it be.

They are made from the schemas, so that a new field is among them from its first day, and from `tests/api/rich.yaml`,
which has one valid object of every kind with every field. The API server judges each: what it refuses is made smaller.
Selectors are programs, of which size says little: the worst of those are written by hand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kubeloop.objects import Manifest
from modelplane_operator.api import KINDS, ModelEndpoint, ModelService, crd
from modelplane_operator.api.bounds import GROUPS, LABELS, SELECTOR_TEXT, SELECTORS
from tests.api.contract import rich

LARGEST = 1_400_000  # etcd takes 1.5 MB, managedFields included
FRACTIONS = (1.0, 0.5, 0.2, 0.05, 0.01)  # of each bound, until an API server takes it
MEMBERS = "[]"  # of a list, in a path

Path = tuple[str, ...]
Accepts = Callable[[Manifest], Awaitable[bool]]
"""True if an API server would store the object."""


@dataclass(frozen=True, slots=True)
class WorstObject:
    """An object as its author would apply it. `what` says which part of it is as large as can be."""

    kind: str
    what: str
    manifest: Manifest


def _object_without_status(kind: str) -> Manifest:
    """Without status, which is not its author's, and without a cache that a deployment would wait for."""
    one = {name: part for name, part in rich()[kind].items() if name != "status"}
    if kind == "ModelDeployment":
        template = one["spec"]["template"]
        spec = {name: part for name, part in template["spec"].items() if name != "modelCacheRef"}
        one["spec"] = {**one["spec"], "template": {**template, "spec": spec}}
    return one


async def worst_objects(accepts: Accepts, namespace: str, only: Collection[str] = ()) -> list[WorstObject]:
    """Return those of some kinds, or of all, that the API server accepts, and always those that are written by hand."""
    found: list[WorstObject] = []
    for kind in (one for one in KINDS if not only or one.definition.kind in only):
        name, schema = kind.definition.kind, crd.schema(kind)["properties"]["spec"]
        plain = _object_without_status(name)
        for number, enlarged in enumerate(_variants(schema, plain["spec"])):
            for fraction in FRACTIONS:
                spec = _enlarge(schema, plain["spec"], enlarged, fraction)
                one = _with_name({**plain, "spec": spec}, f"{name.lower()}-{number}", namespace)
                if len(orjson.dumps(one)) < LARGEST and await accepts(one):
                    largest = min(enlarged, key=len)
                    found.append(WorstObject(name, f"{'.'.join(('spec', *largest))}{'...' * (len(enlarged) > 1)}", one))
                    break
    for name, texts in _selectors().items():
        one = _with_name(_deployment_with_selectors(texts), f"selectors-{name.replace(' ', '-')}", namespace)
        found.append(WorstObject("ModelDeployment", f"selectors: {name}", one))
    found.append(
        WorstObject(
            "ModelService",
            "entries over a crowd",
            _with_name(_service_with_entries(_shared_labels()), "crowd", namespace),
        )
    )
    found.append(
        WorstObject(
            "ModelService",
            "entries beside it",
            _with_name(_service_with_entries(_own_labels("nobody")), "beside", namespace),
        )
    )
    return found


def _with_name(manifest: Manifest, name: str, namespace: str) -> Manifest:
    metadata: Manifest = {"name": name}
    if "namespace" in manifest["metadata"]:
        metadata["namespace"] = namespace
    return {**manifest, "metadata": metadata}


# Size -----------------------------------------------------------------------------------------------------------------


def _variants(schema: Manifest, value: Any) -> Iterator[frozenset[Path]]:
    """Return sets of paths to enlarge: each path alone, with those above it, with those below it; and all."""
    every = list(dict.fromkeys(_bounded_paths(schema, value, ())))
    seen: set[frozenset[Path]] = set()
    for part in every:
        above = frozenset(one for one in every if part[: len(one)] == one)
        below = frozenset(one for one in every if one[: len(part)] == part)
        for chosen in (frozenset({part}), above, below):
            if chosen not in seen:
                seen.add(chosen)
                yield chosen
    if (whole := frozenset(every)) not in seen:
        yield whole


def _bounded_paths(schema: Manifest, value: Any, here: Path) -> Iterator[Path]:
    """Where there are lists, maps and texts that have a bound."""
    match value:
        case list():
            yield here
            if value:
                yield from _bounded_paths(schema["items"], value[0], (*here, MEMBERS))
        case dict() if "properties" in schema:
            for name, part in value.items():
                yield from _bounded_paths(schema["properties"][name], part, (*here, name))
        case dict() if isinstance(schema.get("additionalProperties"), dict):
            yield here
            for part in [*value.values()][:1]:
                yield from _bounded_paths(schema["additionalProperties"], part, (*here, MEMBERS))
        case str() if "maxLength" in schema and "enum" not in schema:
            yield here
        case _:
            pass


def _enlarge(schema: Manifest, value: Any, chosen: frozenset[Path], fraction: float, here: Path = ()) -> Any:
    """Return the value with the chosen paths as large as that fraction of their bounds."""
    large, inner = here in chosen, (*here, MEMBERS)
    match value:
        case [first, *others]:
            one = _enlarge(schema["items"], first, chosen, fraction, inner)
            count = max(1, int(schema["maxItems"] * fraction) - len(others)) if large else 1
            return [*(_with_own_name(schema["items"], one, number) for number in range(count)), *others]
        case dict() if "properties" in schema:
            return {
                name: _enlarge(schema["properties"][name], part, chosen, fraction, (*here, name))
                for name, part in value.items()
            }
        case dict() if isinstance(schema.get("additionalProperties"), dict) and value:
            name, part = next(iter(value.items()))
            one = _enlarge(schema["additionalProperties"], part, chosen, fraction, inner)
            count = max(1, int(schema["maxProperties"] * fraction)) if large else 1
            return {f"{name}{number or ''}": one for number in range(count)}
        case str() if large and "maxLength" in schema:
            return (value + (value[-1:] or "x") * schema["maxLength"])[: max(1, int(schema["maxLength"] * fraction))]
        case _:
            return value


IDENTITIES = ("name", "key", "mountPath", "chart")


def _with_own_name(schema: Manifest, value: Any, number: int) -> Any:
    """Return the same value under a name of its own."""
    if number == 0:
        return value
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        own = {name: _with_own_name(fields[name], value[name], number) for name in IDENTITIES if name in value}
        return {**value, **own}
    if isinstance(value, str) and "enum" not in schema:
        return f"{value[: schema.get('maxLength', 63) - len(str(number))]}{number}"
    return value


# What size says little of ---------------------------------------------------------------------------------------------

PRODUCT = 'device.attributes["gpu.nvidia.com"].productName'
LONGEST = 10_240  # of one selector


def _selectors() -> Mapping[str, Iterable[str]]:
    """Selectors that take long to check, to refuse or to evaluate, each with as many as a deployment may have."""

    def long(begin: str, part: str, end: str) -> list[str]:
        """As many of the longest as fit."""
        count = (LONGEST - len(begin) - len(end) - 10) // len(part)
        return [f"{begin}{part * count}{end} || {number} == 0" for number in range(SELECTOR_TEXT // LONGEST)]

    return {
        "ordinary": [f'device.driver != "{number}"' for number in range(SELECTORS)],
        "regular expressions": [f'{PRODUCT}.matches("((a?){{30}}){{30}}b{number}")' for number in range(SELECTORS)],
        "long regular expressions": long(f'{PRODUCT}.matches("', "(a?){100}", '")'),
        "loops": [f"lists.range(200).all(x, lists.range(200).all(y, x + y >= {-n}))" for n in range(SELECTORS)],
        "conditions": long("true", ' && device.driver != "x"', ""),
        "sums": long("1", "+1", " > 0"),
        "brackets": long("(" * 200 + "true" + ")" * 200, " || (true)", ""),
        "lists": long("[1", ",1", "].size() > 0"),
        "no selectors": long("true", " && true", " &&"),
    }


def _deployment_with_selectors(texts: Iterable[str]) -> Manifest:
    """Return a deployment with these selectors, in as few requests as they fit into."""
    plain = _object_without_status("ModelDeployment")
    template = plain["spec"]["template"]["spec"]["engines"][0]["members"][0]["template"]
    selectors = [{"cel": text} for text in texts]
    rows = [selectors[start : start + 8] for start in range(0, len(selectors), 8)]
    requests = [{"name": f"r{number}", "count": 1, "selectors": row} for number, row in enumerate(rows)]
    engines = [
        {
            "name": f"e{start}",
            "members": [{"template": template, "nodeSelector": {"devices": requests[start : start + 4]}}],
        }
        for start in range(0, len(requests), 4)
    ]
    return {**plain, "spec": {"replicas": 1, "template": {"spec": {"engines": engines}}}}


def _service_with_entries(labels: Mapping[str, str]) -> Manifest:
    entries = [{"weight": 1, "selector": {"matchLabels": labels}} for _ in range(GROUPS)]
    return {**_object_without_status(ModelService.definition.kind), "spec": {"endpoints": entries}}


def _shared_labels() -> Mapping[str, str]:
    return {f"crowd-{number}": "yes" for number in range(LABELS)}


def _own_labels(name: str) -> Mapping[str, str]:
    """Labels that no other has: a service that selects nothing says which of them it may mean."""
    return {f"alone-{number}": f"{name}-{number}" for number in range(LABELS)}


# What they meet -------------------------------------------------------------------------------------------------------

CLUSTERS, DEVICES, ENDPOINTS = 32, 8, 300


def prerequisites(namespace: str) -> Iterator[Manifest]:
    """Return clusters with all sorts of devices, which are never reconciled, and endpoints that a service selects."""
    plain = _object_without_status("InferenceCluster")
    for number in range(CLUSTERS):
        text = f"NVIDIA {number} {'a' * 64}"[:64]
        devices = [
            {
                "name": f"gpu-{place}",
                "claim": "DRA",
                "driver": "gpu.nvidia.com",
                "deviceClassName": "gpu.nvidia.com",
                "count": 8,
                "attributes": {"productName": {"string": text}, "place": {"int": place}},
                "capacity": {"memory": {"value": f"{80 + number}Gi"}},
            }
            for place in range(DEVICES)
        ]
        yield {
            **plain,
            "metadata": {
                "name": f"around-{number}",
                "labels": {"region": "eu"},
                "annotations": {"crossplane.io/paused": "true"},
            },
            "spec": {"cluster": {"source": "Existing", "existing": {"secretRef": {"name": "nobody"}}}},
            "status": {
                "gpuPools": [{"name": "h100", "nodes": 8, "devices": devices}],
                "conditions": [
                    _true_condition("ClusterReady"),
                    _true_condition("Ready"),
                    _true_condition("GatewayReady"),
                ],
            },
        }
    for number in range(ENDPOINTS):
        yield {
            **_object_without_status(ModelEndpoint.definition.kind),
            "metadata": {
                "name": f"crowd-{number}",
                "namespace": namespace,
                "labels": {**_shared_labels(), **_own_labels(f"n{number}")},
            },
            "spec": {"url": f"https://198.51.100.{number % 250 + 1}:{1000 + number}/"},
        }


def _true_condition(of: str) -> Manifest:
    return {"type": of, "status": "True", "reason": "Available", "lastTransitionTime": "2026-11-22T12:00:00Z"}
