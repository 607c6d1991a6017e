"""Compare the pods of a replica with those that the current operator would render."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from kubeloop.objects import Manifest
from kubeloop.types import DEPLOYMENT, type_of
from modelplane_operator.api.model_replica import OutdatedPods
from modelplane_operator.models.replica.plan.observed import WORKLOADS, Observed
from modelplane_operator.models.replica.render import (
    REVISION,
    SECURITY_REVISION,
    CannotRender,
    Context,
    name_rendering,
    operator_settings,
    render_model_replica,
)

MOST_CHANGES = 16
"""Number of changes that the status lists."""
MOST_LENGTH = 256
"""Number of characters of a change that the status stores."""
MOST_TEXT = 60
"""Number of characters of a value in the description of a change."""


def find_outdated(observed: Observed, context: Context, rendered: Sequence[Manifest]) -> OutdatedPods | None:
    """Return what the current operator would change in the pods of `rendered`; None if nothing."""
    spec = observed.replica.spec
    current = operator_settings(context.images, observed.lifecycle)
    if spec.pod_revision == REVISION and (
        spec.operator is None or name_rendering(spec.operator) == name_rendering(current)
    ):
        return None
    updated = spec.model_copy(update={"pod_revision": REVISION, "operator": current})
    again = render_model_replica(
        observed.replica.model_copy(update={"spec": updated}), context, lifecycle=observed.lifecycle
    )
    if isinstance(again, CannotRender):
        return None
    changes = [*islice(_find_changes(rendered, again), MOST_CHANGES)]
    if not changes:
        return None
    return OutdatedPods(
        version=spec.operator.version if spec.operator else "",
        rendering=name_rendering(current),
        security=spec.pod_revision < SECURITY_REVISION,
        changes=tuple(changes),
    )


def _find_changes(old: Sequence[Manifest], new: Sequence[Manifest]) -> Iterator[str]:
    """Yield the differences between the pod templates of two renderings, one description for each field."""
    before, after = (
        {
            manifest["metadata"]["name"]: manifest["spec"][
                "template" if type_of(manifest) == DEPLOYMENT else "leaderWorkerTemplate"
            ]
            for manifest in manifests
            if type_of(manifest) in WORKLOADS
        }
        for manifests in (old, new)
    )
    for name in sorted(before.keys() | after.keys()):
        for path, old_value, new_value in _compare("", before.get(name), after.get(name)):
            change = (
                f"is added: {_shorten(new_value)}"
                if old_value is None
                else "is removed"
                if new_value is None
                else f"changes from {_shorten(old_value)} to {_shorten(new_value)}"
            )
            yield f"{name}: {path[-100:] or 'its pods'} {change}"[:MOST_LENGTH]


def _compare(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the old and the new value of each field that differs. Items of lists are compared by name."""
    if old == new:
        return
    old_fields, new_fields = _fields_of(old), _fields_of(new)
    if old_fields is None or new_fields is None:
        yield path, old, new
        return
    for name in dict.fromkeys([*old_fields, *new_fields]):
        yield from _compare(f"{path}.{name}" if path else name, old_fields.get(name), new_fields.get(name))


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object, or the items of a list by their names; None if there are none."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if items and all(isinstance(item, dict) and "name" in item for item in items):
        return {item["name"]: item for item in items}
    return None


def _shorten(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."
