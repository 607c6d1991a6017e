"""Kopf as the admission webhook: a handler for each kind whose controller has a review, and the server before them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import kopf
from aiohttp import web
from kopf._cogs.structs.references import Insights, Resource
from kopf._cogs.structs.reviews import WebhookClientConfig, WebhookFn
from kopf._core.engines.admission import WebhookError
from kopf._core.reactor.inventory import ResourceMemories

from kubeloop.loop import Controller
from kubeloop.own_thread import answering_apart, run_in
from modelplane_operator.ask.admission.webhook import PATIENCE, Webhook, is_asked_at, is_question

LARGEST: Final = 8 << 20  # of a request: an object as it is and as it was, 3 MiB at most each
CERTIFICATE_SECONDS: Final = 5.0
UNPROCESSABLE: Final = 422


class Forgetful(ResourceMemories):
    """Keeps nothing of an object: Kopf would keep a memo of each, and is told of no end."""

    async def recall_memo(self, raw_body: Any, *, memobase: Any = None, ephemeral: bool = False) -> Any:
        return await super().recall_memo(raw_body, memobase=memobase, ephemeral=True)


def register(webhook: Webhook, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings) -> Insights:
    """Have Kopf answer for the kinds; what it would look up on the hub is known."""
    found = Insights()
    for one in webhook.controllers:
        group, _, version = one.type.api_version.partition("/")
        found.webhook_resources.add(Resource(group, version, one.type.plural, namespaced=one.type.namespaced))
        on = kopf.on.validate(
            *(group, version, one.type.plural),
            id=one.type.plural,
            registry=registry,
            operations=["CREATE", "UPDATE"],
        )
        on(_handler(webhook, one))
    found.ready_resources.set()
    settings.admission.server = _server(webhook)
    return found


def _handler(webhook: Webhook, controller: Controller[Any, Any]) -> Callable[..., Awaitable[None]]:
    async def review(*, new: Any, old: Any, dryrun: bool, warnings: list[str], **_: object) -> None:
        verdict = await webhook.judge(controller, {**(new or {})}, {**old} if old else None)
        warnings.extend(verdict.told(dry_run=dryrun))
        if verdict.refusals:
            raise kopf.AdmissionError("; ".join(verdict.refusals), code=UNPROCESSABLE)

    return review


def _server(webhook: Webhook) -> Callable[[WebhookFn], AsyncGenerator[WebhookClientConfig]]:
    """A server whose certificate changes while it listens: Kopf's own would close, and open another one."""

    async def serve(review: WebhookFn) -> AsyncGenerator[WebhookClientConfig]:
        here = asyncio.get_running_loop()

        async def answer(request: web.Request) -> web.Response:
            if (paths := webhook.paths) is None:
                paths = await run_in(here, webhook.read_paths())
            if request.method != "POST" or not is_asked_at(request.path, paths):
                # Before anything is read; and whoever tries again has to begin with a handshake.
                raise web.HTTPNotFound(headers={"Connection": "close"})
            try:
                asked = json.loads(await request.read())
                said = await run_in(here, webhook.answer(asked) if is_question(asked) else _reviewed(review, asked))
                return web.json_response(said)
            except (WebhookError, json.JSONDecodeError, RecursionError) as error:
                raise web.HTTPBadRequest(text=str(error)) from None

        app = web.Application(client_max_size=LARGEST)
        app.router.add_route("*", "/{any:.*}", answer)
        async with answering_apart(app, webhook.listen, grace=PATIENCE, tls=webhook.tls) as there:
            yield WebhookClientConfig()
            while True:
                if (shown := webhook.to_show()) is not None:
                    there.call_soon_threadsafe(webhook.show, shown)
                await asyncio.sleep(CERTIFICATE_SECONDS)

    return serve


async def _reviewed(review: WebhookFn, asked: Any) -> Any:
    return await review(asked)
