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

from modelplane_operator.runtime.admission import PATIENCE, Webhook, is_question
from modelplane_operator.runtime.loop import Controller
from modelplane_operator.runtime.probes import answering

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
        async def answer(request: web.Request) -> web.Response:
            if not webhook.is_asked_at(request.path):
                raise web.HTTPNotFound  # before anything is read
            try:
                asked = json.loads(await request.read())
                return web.json_response(await (webhook.answer(asked) if is_question(asked) else review(asked)))
            except (WebhookError, json.JSONDecodeError, RecursionError) as error:
                raise web.HTTPBadRequest(text=str(error)) from None

        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/{any:.*}", answer)
        async with answering(app, webhook.listen, grace=PATIENCE, tls=webhook.tls):
            yield WebhookClientConfig()
            while True:
                webhook.show()
                await asyncio.sleep(CERTIFICATE_SECONDS)

    return serve
