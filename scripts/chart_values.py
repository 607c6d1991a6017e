"""What may be chosen of the chart: values.schema.json and the table in its README, from values.yaml and its comments.

A value is of the type of its default; what that does not say is in TYPES. The operator's settings say it themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from modelplane_operator import setting_values
from modelplane_operator.settings import Settings
from scripts.pages import placed

ROOT = Path(__file__).resolve().parent.parent
CHART = Path("charts/modelplane-operator")
SCHEMA, PAGE, VALUES = CHART / "values.schema.json", CHART / "README.md", CHART / "values.yaml"

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NAMESPACE: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
STRINGS: Schema = {"type": "object", "additionalProperties": STRING}
OBJECT: Schema = {"type": "object"}
QUANTITIES: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
RESOURCES: Schema = {
    "type": "object",
    "properties": {"requests": QUANTITIES, "limits": QUANTITIES, "claims": {"type": "array"}},
    "additionalProperties": False,
}


def listed(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def objects(*required: str, only: tuple[str, ...] = ()) -> Schema:
    """A list of objects as Kubernetes has them: what each must say, and all that it may, where that is little."""
    item: Schema = {"type": "object", "required": list(required)} if required else {"type": "object"}
    if only:
        item |= {"properties": {key: {} for key in only}, "additionalProperties": False}
    return listed(item)


TYPES: Mapping[str, Schema] = {
    "replicaCount": {"type": "integer", "minimum": 0},
    "commonLabels": STRINGS,
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": objects("name", only=("name",)),
    "serviceAccount.name": {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"},
    "serviceAccount.annotations": STRINGS,
    "resources": RESOURCES,
    "hubGateway.resources": RESOURCES,
    "podAnnotations": STRINGS,
    "podLabels": STRINGS,
    "nodeSelector": STRINGS,
    "tolerations": objects(only=("key", "operator", "value", "effect", "tolerationSeconds")),
    "affinity": {
        "type": "object",
        "properties": dict.fromkeys(("nodeAffinity", "podAffinity", "podAntiAffinity"), OBJECT),
        "additionalProperties": False,
    },
    "extraEnv": objects("name", only=("name", "value", "valueFrom")),
    "extraVolumes": objects("name"),
    "extraVolumeMounts": objects("name", "mountPath"),
    "tenantNamespaces": {"anyOf": [{"enum": ["", "all"]}, listed(NAMESPACE, minItems=1)]},
    "llmInferences.onHub": {"type": "object", "additionalProperties": listed(NAMESPACE)},
    "llmInferences.hostsOnHub": {"type": "object", "additionalProperties": listed(STRING)},
    "apiKeys.replicaCount": {"type": "integer", "minimum": 1},
    "apiKeys.resources": RESOURCES,
    "apiKeys.from": listed(OBJECT),
    "admission.routes": {"enum": ["Operator", "OwnPrefix"]},
    "admission.writers.users": listed(STRING),
    "admission.writers.groups": listed(STRING),
    "networkPolicy.from": listed(OBJECT),
    "networkPolicy.admissionFrom": listed(OBJECT),
    "networkPolicy.egress": listed(OBJECT),
    "networkPolicy.hubGateway.private": objects("cidr", only=("cidr", "except")),
    "serviceMonitor.labels": STRINGS,
    "prometheusRule.labels": STRINGS,
    "grafanaDashboard.labels": STRINGS,
}
# Settings that the chart or the image sets.
SET_BY_CHART = frozenset(
    (
        *("kubeconfig", "lease_namespace", "listen", "admission_listen", "hub_gateway", "tenant_namespaces"),
        *("llm_inferences_on_hub", "llm_inference_hosts_on_hub", "crash_record", "definitions"),
    )
)


def values() -> Schema:
    return yaml.safe_load((ROOT / VALUES).read_text())


def schema() -> str:
    """The text of values.schema.json, which Helm holds every install, upgrade, template and lint to."""
    top = closed(values(), "", comments((ROOT / VALUES).read_text()))
    top["properties"]["global"] = {"description": "What a chart around this one gives all of its charts; not used."}
    title = "The values of the chart modelplane-operator. Written by `make crds` from values.yaml."
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **top}, indent=2) + "\n"


def closed(held: Mapping[str, Any], path: str, told: Mapping[str, str]) -> Schema:
    """An object that has these values and no others."""
    inside = {key: of(value, f"{path}.{key}".lstrip("."), told) for key, value in held.items()}
    return {"type": "object", "properties": inside, "additionalProperties": False}


def of(value: Any, path: str, told: Mapping[str, str]) -> Schema:
    """The schema of one value, with what its comment says."""
    described = {"description": told[path]} if path in told else {}
    if path == "settings":
        return described | settings()
    if path in TYPES:
        return described | TYPES[path]
    match value:
        case bool():
            return described | {"type": "boolean"}
        case int():
            return described | {"type": "integer"}
        case str():
            return described | STRING
        case dict() if value:
            return described | closed(value, path, told)
        case _:
            raise SystemExit(f"chart values: TYPES does not say of which type {path} is")


def settings() -> Schema:
    """Return the schema of the operator's flags, without those that the chart sets."""
    flags = {
        option.name.replace("_", "-"): {"description": option.metadata["meaning"], **setting(option.metadata["read"])}
        for option in fields(Settings)
        if option.name not in SET_BY_CHART
    }
    return {"type": "object", "properties": flags, "additionalProperties": False}


def setting(read: Any) -> Schema:
    """What a flag may be; of a string the operator says more than a schema can."""
    if isinstance(read, setting_values.OneOf):
        return {"enum": list(read.choices)}
    if read is setting_values.seconds:
        return {"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": r"^[0-9]+(\.[0-9]+)?$"}
    if read is setting_values.lease:
        return {"type": ["number", "string"], "minimum": 5, "maximum": 3600, "pattern": r"^[0-9]+(\.[0-9]+)?$"}
    if read is setting_values.factor:
        return {"type": ["number", "string"], "minimum": 0.1, "maximum": 100, "pattern": r"^[0-9]+(\.[0-9]+)?$"}
    if read is setting_values.amount:
        return {"type": ["integer", "string"], "minimum": 0, "maximum": 1000, "pattern": "^[0-9]{1,4}%?$"}
    if read is setting_values.size:
        return {"type": ["integer", "string"], "minimum": 1, "pattern": "^[0-9]{1,12}(Ki|Mi|Gi)?$"}
    return STRING


def comments(text: str) -> dict[str, str]:
    """What the comment above each value says, by its path; examples in it, which are indented, aside."""
    found, said, way = dict[str, str](), list[str](), list[tuple[int, str]]()
    for line in text.splitlines():
        comment = re.fullmatch(r" *#( {1,2}?(?! )(.*)| {3,}.*|)", line)
        key = re.match(r"( *)([A-Za-z]\w*):", line)
        if comment:
            said += [comment[2]] if comment[2] else []
        elif key and not line.lstrip().startswith("-"):
            depth = len(key[1])
            way = [*(step for step in way if step[0] < depth), (depth, key[2])]
            if said:
                found[".".join(name for _, name in way)] = re.sub(", for example:$", ".", " ".join(said))
            said = []
        else:
            said = []
    return found


def page() -> str:
    """The chart's README, with the table of values in its place."""
    told = comments((ROOT / VALUES).read_text())
    rows = "\n".join(
        f"| `{path}` | {'`' + shown(value) + '`' if shown(value) else ''} | {meaning(path, told)} |"
        for path, value in leaves(values())
    )
    return placed((ROOT / PAGE).read_text(), "values", f"| Value | Default | What it is for |\n|---|---|---|\n{rows}\n")


def leaves(held: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that may be set by itself."""
    for key, value in held.items():
        here = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict) and value and here not in TYPES:
            yield from leaves(value, here)
        else:
            yield here, value


def shown(value: Any) -> str:
    """A default as the table has it; what is long is in values.yaml."""
    text = json.dumps(value)
    return text if len(text) <= 40 else "..."


def meaning(path: str, told: Mapping[str, str]) -> str:
    """What a value is for, after what the object around it is for where the value is its first."""
    above, _, key = path.rpartition(".")
    first = above and next(iter(_at(above))) == key
    return " ".join(filter(None, (told.get(above, "") if first else "", told.get(path, "")))).replace("|", "\\|")


def _at(path: str) -> Mapping[str, Any]:
    held: Any = values()
    for key in path.split("."):
        held = held[key]
    return held
