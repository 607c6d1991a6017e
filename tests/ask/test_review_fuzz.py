"""No object that an API server accepts ends its review in "review failed": every example, and changes of each.

REVIEW_SEED repeats a run.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from datetime import timedelta
from random import Random, SystemRandom
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pydantic import ValidationError
from structlog.testing import capture_logs

from kubeloop.cache.informer import Informer
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.client.kube import Kube
from kubeloop.resource import of
from modelplane_operator.api import KINDS, InferenceCluster, Kind
from modelplane_operator.ask.admission.reviews import of_kinds
from modelplane_operator.ask.admission.webhook import Webhook
from modelplane_operator.models.deployment import controller as deployments
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.routing.endpoint.backend_url import Reach
from tests.support.builders import EPOCH, cluster, gpu, pool
from tests.support.declared import declared
from tests.support.manifests import ROOT

Manifest = dict[str, Any]

CHANGES = 8  # of each example
SEED = int(os.environ.get("REVIEW_SEED", "0")) or SystemRandom().randrange(1, 2**31)
KIND = {(kind.definition.api_version, kind.definition.kind): kind for kind in KINDS}
EXAMPLES = [
    (path, document)
    for path in sorted((ROOT / "examples").rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document and (document.get("apiVersion"), document.get("kind")) in KIND
]


def nothing() -> Kube:
    """The hub, which has none of the Secrets and ConfigMaps that examples name."""

    async def find(*_: object) -> None:
        return None

    return cast(Kube, SimpleNamespace(find=find))


async def webhook() -> Webhook:
    """The operator's controllers, on a hub with a cluster on which everything fits, and nothing else."""
    controllers = await declared()
    indexes: dict[Any, dict[str, Any]] = {}
    for controller in controllers:
        for kind, functions in controller.indexes.items():
            indexes.setdefault(kind, {}).update(functions)
    informers = {of(kind): Informer(of(kind), lambda: 0.0, None, indexes.get(of(kind), {})) for kind in KINDS}
    fleet = FleetView(lambda: EPOCH)
    fleet.add_event_handlers(informers[of(InferenceCluster)])
    roomy = cluster("berlin", pool("large", gpu("200Gi", 8)), nodes=100).to_manifest()
    roomy["metadata"] |= {"uid": "uid-of-berlin", "resourceVersion": "1"}
    informers[of(InferenceCluster)].on_write(roomy)
    hub = SimpleNamespace(synced=True, find=lambda kind: informers.get(kind) or Informer(kind, lambda: 0.0))
    clients = cast(Any, SimpleNamespace(hub=hub, now=lambda: EPOCH, names=lambda: (), cluster=lambda _: None))
    deciding = deployments.controller(fleet, timedelta(0), ReferencedObjects(nothing, float, 1.0))
    known = {**{controller.type: controller for controller in controllers}, deciding.type: deciding}
    reviews = of_kinds(fleet, Reach(), known)
    of_users = [
        SimpleNamespace(kind=c.kind, type=c.type, review=reviews[c.type], answers=None)
        for c in controllers
        if c.type in reviews
    ]
    return Webhook(("", 0), "localhost", clients, cast(Any, tuple(of_users)))


def changes(document: Manifest, kind: Kind, random: Random) -> Iterator[Manifest]:
    """Changed copies that the kind's bounds allow."""
    for _ in range(CHANGES):
        changed = copy.deepcopy(document)
        for _ in range(random.randrange(1, 4)):
            _change(changed["spec"], random)
        try:
            kind.parse_bounded(changed)
        except (ValidationError, TypeError, ValueError):
            continue
        yield changed


def _change(node: Any, random: Random) -> None:
    """Remove, repeat, empty or replace something somewhere."""
    places = list[tuple[Any, Any]]()

    def walk(one: Any) -> None:
        for name, part in one.items() if isinstance(one, dict) else enumerate(one):
            places.append((one, name))
            if isinstance(part, dict | list):
                walk(part)

    walk(node)
    if not places:
        return
    holder, name = random.choice(places)
    match random.randrange(5):
        case 0 if isinstance(holder, dict):
            del holder[name]
        case 1 if isinstance(holder[name], list):
            holder[name] = holder[name] * 2
        case 2:
            holder[name] = type(holder[name])()
        case 3:
            other, key = random.choice(places)
            if key in other if isinstance(other, dict) else key < len(other):
                holder[name] = copy.deepcopy(other[key])
        case _:
            holder[name] = random.choice(["x", "", 0, 1, 1000, "1Gi", "true", [], {}, None, "ä" * 10, "a.b/c"])


@pytest.mark.parametrize(("path", "document"), EXAMPLES, ids=[f"{p.stem}-{d['kind']}" for p, d in EXAMPLES])
async def test_no_review_of_an_accepted_object_fails(path: Any, document: Manifest) -> None:
    kind = KIND[document["apiVersion"], document["kind"]]
    reviewed = await webhook()
    controller = next((c for c in reviewed.controllers if c.kind is kind), None)
    if controller is None:
        return  # the operator writes this kind itself
    given = {"namespace": "ml-team"} if kind.definition.scope == "Namespaced" else {}
    stored = {**document, "metadata": {**given, **document["metadata"], "uid": "a-uid"}}
    assert kind.parse_bounded(stored), path
    with capture_logs() as logs:
        for new in (stored, *changes(stored, kind, Random(SEED))):  # noqa: S311 - to be repeated
            for old in (None, stored):
                await reviewed.judge(controller, new, old)
            assert not [line for line in logs if line["event"] == "review failed"], (SEED, new, logs)


async def test_an_llm_inference_that_fits_is_told_where() -> None:
    manifest = {
        "apiVersion": "inference.devopstoolkit.ai/v1alpha1",
        "kind": "LLMInference",
        "metadata": {"name": "qwen", "namespace": "ml-team", "uid": "a-uid"},
        "spec": {"model": "Qwen/Qwen2.5-7B-Instruct", "placement": "Fleet"},
    }
    reviewed = await webhook()
    controller = next(c for c in reviewed.controllers if c.kind.definition.kind == "LLMInference")

    verdict = await reviewed.judge(controller, manifest, None)

    assert "placed on berlin/large" in verdict.forecast[-1], verdict
