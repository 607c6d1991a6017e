"""Serve the fleet as a page on this machine's loopback, read-only, with the user's own credentials."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

import typer
from aiohttp import web

from modelplane_operator import logs
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.options import Context, Kubeconfig, Namespace, hub
from modelplane_operator.cli.output import console
from modelplane_operator.cli.page.live import Live, sees_all
from modelplane_operator.cli.page.server import Server

LOOPBACK = "127.0.0.1"


def page(
    port: Annotated[int, typer.Option("--port", help="The port; 0 chooses a free one.", min=0, max=65535)] = 0,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show clusters, models and moves in a browser, live. Only you can open the page, and it changes nothing."""
    logs.configure(level="error", json=False)
    target = hub(kubeconfig, context)
    may_see_all = ask(target, sees_all)
    own = "" if may_see_all else namespace or target.namespace

    async def serve() -> None:
        """Serve the page until the command is interrupted."""
        live, token = Live(target, own, lambda: hub(kubeconfig, context)), secrets.token_urlsafe(32)
        runner = web.AppRunner(Server(live, token).application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, LOOPBACK, port)
            await site.start()
            _, chosen = runner.addresses[0][:2]
            out = console()
            # Browsers never send the fragment, so the token reaches neither logs nor a Referer header.
            out.print(f"http://{LOOPBACK}:{chosen}/#token={token}", soft_wrap=True)
            if own:
                out.print(f"You cannot list the whole fleet; showing namespace {own} only.")
            out.print("Open it in a browser on this machine. Ctrl-C ends it.")
            await live.run()
        finally:
            await runner.cleanup()

    asyncio.run(serve())
