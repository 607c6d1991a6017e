"""The control API: rules in, records out, as JSON over a socket of this machine."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from localfleet.faultproxy.proxy import Proxy
from localfleet.faultproxy.rules import RuleError, read_rule

LONGEST_WAIT = 60.0


def control(proxy: Proxy) -> web.Application:
    """The application behind the control socket."""

    async def status(request: web.Request) -> Any:
        del request
        book = proxy.book
        return {
            "seed": proxy.rules.seed,
            "calls": len(book.records),
            "in_flight": book.in_flight,
            "mutating_calls": book.mutating_calls,
            "open_watches": len(proxy.watches.open),
        }

    async def rules(request: web.Request) -> Any:
        del request
        return [active.to_json() for active in proxy.rules.active.values()]

    async def add(request: web.Request) -> Any:
        try:
            active = proxy.rules.add(read_rule(orjson.loads(await request.read())))
        except (RuleError, orjson.JSONDecodeError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        await proxy.rules_changed()
        return active.to_json()

    async def remove(request: web.Request) -> Any:
        active = proxy.rules.active.pop(int(request.match_info["id"]), None)
        if active is None:
            raise web.HTTPNotFound(text=f"no rule {request.match_info['id']}")
        await proxy.rules_changed()
        return active.to_json()

    async def clear(request: web.Request) -> Any:
        del request
        proxy.rules.active.clear()
        await proxy.rules_changed()
        return {}

    async def calls(request: web.Request) -> Any:
        since = int(request.query.get("since", "0"))
        wait = min(float(request.query.get("wait", "0")), LONGEST_WAIT)
        if wait:
            await proxy.book.beyond(since, wait)
        records = proxy.book.records
        numbered = request.query.get("mutating") == "1"
        chosen = [record for record in records[since:] if not numbered or record.mutating_call is not None]
        return {"calls": chosen, "next": len(records)}

    async def reset(request: web.Request) -> Any:
        body = orjson.loads(await request.read() or b"{}")
        proxy.book.reset()
        proxy.rules.active.clear()
        proxy.rules.added = 0
        proxy.rules.seed = body.get("seed", proxy.rules.seed)
        await proxy.rules_changed()
        return {"seed": proxy.rules.seed}

    application = web.Application()
    for method, path, action in (
        ("GET", "/status", status),
        ("GET", "/rules", rules),
        ("POST", "/rules", add),
        ("DELETE", "/rules", clear),
        ("DELETE", "/rules/{id:[0-9]+}", remove),
        ("GET", "/calls", calls),
        ("POST", "/reset", reset),
    ):
        application.router.add_route(method, path, _answered(action))
    return application


def _answered(action: Callable[[web.Request], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(await action(request)), content_type="application/json")

    return answer
