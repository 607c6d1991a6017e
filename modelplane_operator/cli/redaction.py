"""Define the texts of objects that a bundle contains: those on an allow-list. Of all others only the presence is
shown.

For the operator's kinds, the CRDs define the list: an enum, a name, a version or a quantity cannot hold much of a
secret. Free text can: arguments, values, labels, annotations, URLs and headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, cast

from kubeloop.helm.release import VERSION_PATTERN
from kubeloop.objects import Manifest, Section, section
from modelplane_operator.api import KINDS, bounds, crd, labels
from modelplane_operator.routing.endpoint.backend_url import Backend, read_url

HIDDEN: Final = "(left out)"
"""Placeholder for a text. It shows support that the field is set."""
SHORT: Final = 16  # maximum length of a text with a pattern, such as a quantity
NAMES: Final = frozenset({bounds.SUBDOMAIN, bounds.LABEL_TEXT, bounds.PLACE, VERSION_PATTERN})
"""Patterns of names and versions, which hold no free text although they may be longer than SHORT."""
FIELDS: Final = frozenset({"apiVersion", "cel", "driver", "image", "kind", "name", "namespace", "revision", "type"})
"""Fields of the operator's kinds that are included although they have no such pattern."""
METADATA: Final = (
    *("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "finalizers"),
    *("ownerReferences.apiVersion", "ownerReferences.kind", "ownerReferences.name", "ownerReferences.uid"),
)
"""Fields of every object's metadata. Labels and annotations are free text, except the operator's own."""
EVENT: Final = (
    *("type", "reason", "message", "firstTimestamp", "lastTimestamp", "eventTime", "action", "reportingComponent"),
    *("involvedObject.apiVersion", "involvedObject.kind", "involvedObject.namespace", "involvedObject.name"),
    *("involvedObject.uid", "source.component"),
)
_STATES: Final = (
    *("waiting.reason", "running.startedAt"),
    *("terminated.reason", "terminated.startedAt", "terminated.finishedAt"),
)
POD: Final = (
    *("spec.nodeName", "spec.serviceAccountName", "spec.containers.name", "spec.containers.image"),
    *("spec.containers.resources.requests.cpu", "spec.containers.resources.requests.memory"),
    *("spec.containers.resources.limits.cpu", "spec.containers.resources.limits.memory"),
    *("status.phase", "status.reason", "status.startTime", "status.qosClass"),
    *(f"status.conditions.{one}" for one in ("type", "status", "reason", "lastTransitionTime")),
    *("status.containerStatuses.name", "status.containerStatuses.image", "status.containerStatuses.imageID"),
    *(f"status.containerStatuses.{when}.{one}" for when in ("state", "lastState") for one in _STATES),
)
"""Fields of a pod: its state and resources, without arguments, variables and the messages of containers."""
_OWN_PREFIXES: Final = tuple(f"metadata.{kind}.{labels.PREFIX}" for kind in ("labels", "annotations"))
"""Beginning of the paths of labels and annotations that the operator writes."""
_FLAG: Final = re.compile(r"--[a-z][-a-z0-9]*(?==|$)")
"""Name of a long flag, with or without a value after it."""


def fields_of(kind: str) -> frozenset[str]:
    """Return the paths of the texts of a kind that are included."""
    of_metadata = {"apiVersion", "kind", *(f"metadata.{item}" for item in METADATA)}
    if kind in _OTHERS:
        return frozenset({*of_metadata, *_OTHERS[kind]})
    (schema,) = (crd.schema(item)["properties"] for item in KINDS if item.definition.kind == kind)
    spec, status = (
        _text_paths(section(schema, "spec"), "spec"),
        _text_paths(section(schema, "status"), "status", every=True),
    )
    return frozenset({*of_metadata, *spec, *status})


_OTHERS: Final = {"Event": EVENT, "Pod": POD}
"""Fields of kinds that have no CRD to derive the list from."""


def _text_paths(schema: Section, path: str, *, every: bool = False) -> Iterator[str]:
    """Yield the paths of texts that cannot hold much, or of all texts if the operator writes them; none within maps."""
    match schema.get("type"):
        case "object":
            for name, item in section(schema, "properties").items():
                yield from _text_paths(cast(Section, item), f"{path}.{name}", every=every)
        case "array":
            yield from _text_paths(section(schema, "items"), path, every=every)
        case "string":
            last, pattern = path.rpartition(".")[2], schema.get("pattern")
            is_short = pattern is not None and schema.get("maxLength", SHORT + 1) <= SHORT
            is_enumerated = "enum" in schema or schema.get("format") == "date-time"
            if every or is_enumerated or is_short or pattern in NAMES or last in FIELDS:
                yield path
        case _:
            pass


def redact(manifest: Manifest, fields: Collection[str], clean: Callable[[str], str]) -> Manifest:
    """Return the object with the texts at these paths; others are replaced by a placeholder.

    `clean` removes anything that looks like a credential from the included texts.
    """

    def convert(value: Any, path: str) -> Any:
        """Convert a value at a path."""
        match value:
            case dict():
                items = cast(Manifest, value).items()
                return {name: convert(item, f"{path}.{name}" if path else str(name)) for name, item in items}
            case list() if path.rpartition(".")[2] in {"args", "command"}:
                # Values of flags can be secrets, but the names show how an engine was started.
                return [_flag(str(item)) for item in cast(list[object], value)]
            case list():
                return [convert(item, path) for item in cast(list[object], value)]
            case str() if path in fields or path.startswith(_OWN_PREFIXES):
                return clean(value)
            case str() if path.endswith(".url") and isinstance(url := read_url(value), Backend):
                # The host of a backend matters to support; its path and query can carry a key.
                return f"{url}/{HIDDEN}"
            case str():
                return HIDDEN
            case _:
                return value

    # managedFields repeats every field of the object.
    metadata = {name: item for name, item in section(manifest, "metadata").items() if name != "managedFields"}
    return convert({**manifest, "metadata": metadata}, "")


def _flag(argument: str) -> str:
    """Return the name of a flag without its value, and the placeholder for other arguments."""
    match = _FLAG.match(argument)
    return HIDDEN if match is None else match[0] if match.end() == len(argument) else f"{match[0]}={HIDDEN}"
