"""Plans in tests: what is there once one is carried out, and what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kubeloop.objects import key_of
from kubeloop.ownership import add_content_hash
from kubeloop.plan import Apply, Create, Delete, Plan, SetFinalizer
from kubeloop.types import type_of

Manifest = dict[str, Any]


def carried_out(plan: Plan, children: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """The children of an object after the steps of a plan, as the store would have them.

    What is applied keeps its status and uid; its generation grows when its content changes.
    """
    there = {(type_of(child), key_of(child)): child for child in children}
    for step in plan.steps:
        match step:
            case Apply(manifest) | Create(manifest):
                place = (type_of(manifest), key_of(manifest))
                there[place] = _stored(manifest, there.get(place))
            case Delete(kind, key, uid):
                assert there[kind, key]["metadata"]["uid"] == uid
                del there[kind, key]
            case SetFinalizer():
                pass
            case _:
                raise AssertionError(f"no test has needed {step} yet")
    return tuple(there.values())


def _stored(manifest: Manifest, before: Manifest | None) -> Manifest:
    known = before["metadata"] if before else {"uid": f"uid-of-{manifest['metadata']['name']}", "generation": 0}
    same = before is not None and before.get("spec") == manifest.get("spec")
    metadata = {
        **add_content_hash(manifest)["metadata"],
        "uid": known["uid"],
        "generation": known["generation"] + (not same),
    }
    status = {"status": before["status"]} if before and "status" in before else {}
    return {**manifest, "metadata": metadata, **status}


def told(plan: Plan) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition that a plan reports, none of which says the same three times."""
    assert plan.status is not None
    said = Counter(one.message for one in plan.status.conditions if one.message)
    assert [words for words, times in said.items() if times > 2] == []
    return {one.type: (one.status, one.reason, one.message or "") for one in plan.status.conditions}
