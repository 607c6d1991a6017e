"""Which texts of an object a bundle tells: those that an allow-list names, and of all others only that they are there.

Of our kinds the definitions are the list: what is one of few words, a name, a version or an amount cannot hold much of
a secret. What people write as they like can: arguments, values, labels, annotations, URLs, headers.
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
SHORT: Final = 16  # characters of a text with a pattern: amounts and the like
NAMES: Final = frozenset({bounds.SUBDOMAIN, bounds.LABEL_TEXT, bounds.PLACE, VERSION_PATTERN})
FIELDS: Final = frozenset({"apiVersion", "cel", "driver", "image", "kind", "name", "namespace", "revision", "type"})
"""Fields of our kinds that are told although they are texts without such a pattern."""
METADATA: Final = (
    *("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "finalizers"),
    *("ownerReferences.apiVersion", "ownerReferences.kind", "ownerReferences.name", "ownerReferences.uid"),
)
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
_OURS: Final = tuple(f"metadata.{kind}.{labels.PREFIX}" for kind in ("labels", "annotations"))
_FLAG: Final = re.compile(r"--[a-z][-a-z0-9]*(?==|$)")


def fields_of(kind: str) -> frozenset[str]:
    """Return the paths of the texts of a kind that are told."""
    of_metadata = {"apiVersion", "kind", *(f"metadata.{one}" for one in METADATA)}
    if kind in _OTHERS:
        return frozenset({*of_metadata, *_OTHERS[kind]})
    (schema,) = (crd.schema(one)["properties"] for one in KINDS if one.definition.kind == kind)
    spec, status = _texts(section(schema, "spec"), "spec"), _texts(section(schema, "status"), "status", every=True)
    return frozenset({*of_metadata, *spec, *status})


_OTHERS: Final = {"Event": EVENT, "Pod": POD}


def _texts(schema: Section, path: str, *, every: bool = False) -> Iterator[str]:
    """Yield the paths of texts that cannot hold much, or, of what the operator writes, of every one; none of maps."""
    match schema.get("type"):
        case "object":
            for name, one in section(schema, "properties").items():
                yield from _texts(cast(Section, one), f"{path}.{name}", every=every)
        case "array":
            yield from _texts(section(schema, "items"), path, every=every)
        case "string":
            last, pattern = path.rpartition(".")[2], schema.get("pattern")
            short = pattern is not None and schema.get("maxLength", SHORT + 1) <= SHORT
            of_words = "enum" in schema or schema.get("format") == "date-time"
            if every or of_words or short or pattern in NAMES or last in FIELDS:
                yield path
        case _:
            pass


def told(manifest: Manifest, fields: Collection[str], clean: Callable[[str], str]) -> Manifest:
    """Return the object with the texts at these paths, and of others that they are there.

    `clean` takes out of what is told what is a credential by its form.
    """

    def one(value: Any, path: str) -> Any:
        match value:
            case dict():
                below = cast(Manifest, value).items()
                return {name: one(each, f"{path}.{name}" if path else str(name)) for name, each in below}
            case list() if path.rpartition(".")[2] in {"args", "command"}:
                return [_flag(str(each)) for each in cast(list[object], value)]
            case list():
                return [one(each, path) for each in cast(list[object], value)]
            case str() if path in fields or path.startswith(_OURS):
                return clean(value)
            case str() if path.endswith(".url") and isinstance(place := read_url(value), Backend):
                return f"{place}/{HIDDEN}"
            case str():
                return HIDDEN
            case _:
                return value

    kept = {name: each for name, each in section(manifest, "metadata").items() if name != "managedFields"}
    return one({**manifest, "metadata": kept}, "")


def _flag(argument: str) -> str:
    """Return the name of a flag, without its value; nothing of another argument."""
    found = _FLAG.match(argument)
    return HIDDEN if found is None else found[0] if found.end() == len(argument) else f"{found[0]}={HIDDEN}"
