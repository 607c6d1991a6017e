"""Reviews that wait for what is written a moment later: they keep nobody else from being reviewed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest
from structlog.testing import capture_logs

from kubeloop.cache.informer import Informer
from kubeloop.resource import of
from kubeloop.verdict import Verdict
from modelplane_operator.api import KINDS, ModelEndpoint, ModelService
from modelplane_operator.ask.admission.reviews import PROPAGATION, WAITING, of_kinds
from modelplane_operator.ask.admission.server import _create_handler
from modelplane_operator.ask.admission.webhook import AT_ONCE, Webhook
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.service.controller import INDEXES
from tests.support.virtual_time import run

Manifest = dict[str, Any]

METADATA_INSIDE = "http://169.254.169.254/"


def controllers() -> dict[Any, Any]:
    """Of which no more is asked here than the kind and the review."""
    made = {of(kind): SimpleNamespace(kind=kind, type=of(kind), answers=None) for kind in KINDS}
    reviews = of_kinds(cast(Any, None), Reach(), cast(Any, made))
    return {kind: SimpleNamespace(**vars(one), review=reviews.get(kind)) for kind, one in made.items()}


def webhook(known: dict[Any, Any]) -> Webhook:
    """On a hub without objects."""
    informers = {kind: Informer(kind, lambda: 0.0, None, indexes) for kind, indexes in INDEXES.items()}
    clients = SimpleNamespace(hub=SimpleNamespace(synced=True, find=informers.get))
    return Webhook(("", 0), "localhost", cast(Any, clients), tuple(known.values()))


def lacking(number: int) -> Manifest:
    """A service that nothing answers for."""
    metadata = {"name": f"s{number}", "namespace": "n"}
    return {"metadata": metadata, "spec": {"endpoints": [{"selector": {"matchLabels": {"model": "nobody"}}}]}}


def endpoint(name: str, url: str) -> Manifest:
    metadata = {"name": name, "namespace": "n", "labels": {"model": "nobody"}}
    return {"metadata": metadata, "spec": {"url": url}}


def test_services_that_wait_keep_no_other_object_from_its_review() -> None:
    known = controllers()
    asked = webhook(known)

    async def story() -> tuple[Verdict, Sequence[Verdict], list[float]]:
        loop = asyncio.get_running_loop()
        ends = list[float]()

        async def judged(number: int) -> Verdict:
            verdict = await asked.judge(known[of(ModelService)], lacking(number), None)
            ends.append(loop.time())
            return verdict

        waiting = [asyncio.create_task(judged(number)) for number in range(AT_ONCE)]
        await asyncio.sleep(PROPAGATION / 2)
        refused = await asked.judge(known[of(ModelEndpoint)], endpoint("inside", METADATA_INSIDE), None)
        return refused, await asyncio.gather(*waiting), ends

    refused, told, ends = run(story())

    assert refused.refusals, "it is reviewed while they wait"
    assert [len(one.warnings) for one in told] == [1] * AT_ONCE, "who does not wait is warned all the same"
    assert ends == [0.0] * (AT_ONCE - WAITING) + [PROPAGATION] * WAITING


def test_a_refusal_is_logged_at_info_with_its_reason() -> None:
    known = controllers()
    review = _create_handler(webhook(known), known[of(ModelEndpoint)])

    with capture_logs() as logs, pytest.raises(kopf.AdmissionError):
        run(review(new=endpoint("inside", METADATA_INSIDE), old=None, dryrun=False, warnings=[]))

    (line,) = logs
    assert (line["event"], line["log_level"], line["object"]) == ("object refused", "info", "n/inside")
    assert "169.254.169.254" in line["reasons"][0]


def test_a_place_to_wait_in_is_free_again_after_a_wait_and_after_one_that_is_given_up() -> None:
    known = controllers()
    asked = webhook(known)

    async def story() -> float:
        loop = asyncio.get_running_loop()
        judge = asked.judge
        for ends in ("cancelled", "told"):
            waiting = [asyncio.create_task(judge(known[of(ModelService)], lacking(n), None)) for n in range(WAITING)]
            await asyncio.sleep(0)
            if ends == "cancelled":
                for one in waiting:
                    one.cancel()
            await asyncio.wait(waiting)
        began = loop.time()
        await judge(known[of(ModelService)], lacking(0), None)
        return loop.time() - began

    assert run(story()) == PROPAGATION


def test_what_is_seen_during_the_wait_is_no_reason_to_warn() -> None:
    known = controllers()
    asked = webhook(known)

    async def story() -> Verdict:
        waiting = asyncio.create_task(asked.judge(known[of(ModelService)], lacking(0), None))
        await asyncio.sleep(PROPAGATION / 2)
        informer = asked.clients.hub.find(of(ModelEndpoint))
        assert informer is not None
        made = endpoint("e", "http://192.0.2.1")
        informer.on_write({**made, "metadata": {**made["metadata"], "resourceVersion": "9", "uid": "u9"}})
        return await waiting

    assert run(story()).warnings == ()
