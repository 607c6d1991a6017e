"""Run the admission webhook with Kopf: a handler for each kind that has a review, and an HTTPS server before them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import kopf
import structlog
from aiohttp import web
from kopf._cogs.structs.references import Insights, Resource
from kopf._cogs.structs.reviews import WebhookClientConfig, WebhookFn
from kopf._core.engines.admission import WebhookError
from kopf._core.reactor.inventory import ResourceMemories

from kubeloop.loop import Controller
from kubeloop.objects import key_of
from kubeloop.own_thread import run_in, serve_in_thread
from modelplane_operator.ask.admission.webhook import PATIENCE, Webhook, is_question, is_webhook_path

LARGEST: Final = 8 << 20  # it has the new and the old object, of at most 3 MiB each
"""Largest request, in bytes."""
CERTIFICATE_SECONDS: Final = 5.0
"""Seconds between checks for a new certificate."""
UNPROCESSABLE: Final = 422
"""HTTP status of a rejected object."""

log = structlog.get_logger()


class Forgetful(ResourceMemories):
    """Memories that retain nothing: Kopf would keep a memo of each object and never learn of its deletion."""

    async def recall_memo(self, raw_body: Any, *, memobase: Any = None, ephemeral: bool = False) -> Any:
        """Return a memo that is not stored."""
        return await super().recall_memo(raw_body, memobase=memobase, ephemeral=True)


def register(webhook: Webhook, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings) -> Insights:
    """Register the webhook's handlers and server with Kopf, and return what Kopf would look up on the hub."""
    insights = Insights()
    for controller in webhook.controllers:
        group, _, version = controller.type.api_version.partition("/")
        insights.webhook_resources.add(
            Resource(group, version, controller.type.plural, namespaced=controller.type.namespaced)
        )
        on = kopf.on.validate(
            *(group, version, controller.type.plural),
            id=controller.type.plural,
            registry=registry,
            operations=["CREATE", "UPDATE"],
        )
        on(_create_handler(webhook, controller))
    insights.ready_resources.set()
    settings.admission.server = _create_server(webhook)
    return insights


def _create_handler(webhook: Webhook, controller: Controller[Any, Any]) -> Callable[..., Awaitable[None]]:
    """Return Kopf's handler for the kind of a controller."""

    async def review(*, new: Any, old: Any, dryrun: bool, warnings: list[str], **_: object) -> None:
        verdict = await webhook.judge(controller, {**(new or {})}, {**old} if old else None)
        warnings.extend(verdict.messages(dry_run=dryrun))
        if verdict.refusals:
            log.info(
                "object refused",
                kind=controller.type.kind,
                object=str(key_of(new)),
                dry_run=dryrun,
                reasons=verdict.refusals,
            )
            raise kopf.AdmissionError("; ".join(verdict.refusals), code=UNPROCESSABLE)

    return review


def _create_server(webhook: Webhook) -> Callable[[WebhookFn], AsyncGenerator[WebhookClientConfig]]:
    """Return a server whose certificate can change while it listens; Kopf's own would restart."""

    async def serve(review: WebhookFn) -> AsyncGenerator[WebhookClientConfig]:
        loop = asyncio.get_running_loop()

        async def answer(request: web.Request) -> web.Response:
            if (paths := webhook.paths) is None:
                paths = await run_in(loop, webhook.read_paths())
            if request.method != "POST" or not is_webhook_path(request.path, paths):
                # Rejected before the body is read. Closing the connection makes each further attempt cost a handshake.
                raise web.HTTPNotFound(headers={"Connection": "close"})
            try:
                body = json.loads(await request.read())
                result = await run_in(loop, webhook.answer(body) if is_question(body) else _review(review, body))
                return web.json_response(result)
            except (WebhookError, json.JSONDecodeError, RecursionError) as error:
                raise web.HTTPBadRequest(text=str(error)) from None

        app = web.Application(client_max_size=LARGEST)
        app.router.add_route("*", "/{any:.*}", answer)
        async with serve_in_thread(app, webhook.listen, grace=PATIENCE, tls=webhook.tls) as server:
            yield WebhookClientConfig()
            while True:
                if (certificate := webhook.to_show()) is not None:
                    server.call_soon_threadsafe(webhook.show, certificate)
                await asyncio.sleep(CERTIFICATE_SECONDS)

    return serve


async def _review(review: WebhookFn, request: Any) -> Any:
    """Return Kopf's response to a review."""
    return await review(request)
