"""`python -m localfleet.faultproxy`: see the package's docstring."""

import asyncio
import base64
import inspect
import logging
import secrets
import signal
import ssl
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import trustme
import typer
import yaml
from aiohttp import web

import localfleet.faultproxy
from localfleet import http2
from localfleet.faultproxy.book import Book
from localfleet.faultproxy.calls import UNCOUNTED
from localfleet.faultproxy.control import control
from localfleet.faultproxy.proxy import Proxy
from localfleet.faultproxy.rules import Rules
from localfleet.kubeclient import Access, KubeconfigError, Manifest, read_kubeconfig


def main(
    *,
    upstream_kubeconfig: Annotated[Path, typer.Option(help="How to reach the API server.", exists=True)],
    write_kubeconfig: Annotated[Path, typer.Option(help="Where to write the kubeconfig for the client.")],
    control_socket: Annotated[str, typer.Option(help="A path for a unix socket, or 127.0.0.1:PORT.")],
    listen: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0: any.")] = 0,
    record: Annotated[Path | None, typer.Option(help="A file for one JSON line per finished call.")] = None,
    record_bodies: Annotated[bool, typer.Option("--record-bodies", help="Record request bodies too.")] = False,
    seed: Annotated[int, typer.Option(help="Of the rules' probabilities.")] = 0,
    uncounted: Annotated[list[str], typer.Option(help="Resources whose writes get no number.")] = [*UNCOUNTED],  # noqa: B006
) -> None:
    """Stand between one client and one API server."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        access = read_kubeconfig(upstream_kubeconfig)
    except KubeconfigError as error:
        raise SystemExit(str(error)) from error
    with record.open("ab") if record else nullcontext() as file:
        book = Book(uncounted, file, bodies=record_bodies)
        asyncio.run(serve(access, book, Rules(seed), write_kubeconfig, control_socket, listen=listen, port=port))


async def serve(
    access: Access, book: Book, rules: Rules, kubeconfig: Path, control_socket: str, *, listen: str, port: int
) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(listen, "127.0.0.1", "localhost").configure_cert(tls)  # pyright: ignore[reportUnknownMemberType]
    token = secrets.token_urlsafe(24)
    proxy = Proxy(access, token, book, rules)
    # a client that is killed must not leave its watch open behind us
    front = web.Server(
        proxy.forward, handler_cancellation=True, access_log=None, max_line_size=65536, max_field_size=65536
    )
    listener = await loop.create_server(http2.front(front, tls), listen, port, ssl=tls, backlog=1024)
    runner = web.AppRunner(control(proxy), access_log=None)
    await runner.setup()
    await _control_site(runner, control_socket).start()
    url = f"https://{listen}:{listener.sockets[0].getsockname()[1]}"
    write_private(kubeconfig, yaml.safe_dump(client_kubeconfig(access, url, authority.cert_pem.bytes(), token)))
    print(f"ready: {url} stands before {access.server}, seed {rules.seed}", flush=True)
    await stop.wait()
    listener.close()
    for connection in front.connections:
        connection.force_close()
    await runner.cleanup()
    await proxy.close()


def client_kubeconfig(access: Access, url: str, authority: bytes, token: str) -> Manifest:
    """The upstream kubeconfig's names, our address, our CA and a token of our own."""
    trusted = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": access.context,
        "contexts": [{"name": access.context, "context": {"cluster": access.cluster, "user": access.user}}],
        "clusters": [{"name": access.cluster, "cluster": {"server": url, "certificate-authority-data": trusted}}],
        "users": [{"name": access.user, "user": {"token": token}}],
    }


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)


def _control_site(runner: web.AppRunner, where: str) -> web.BaseSite:
    host, _, number = where.rpartition(":")
    if host and number.isdigit():
        if host != "127.0.0.1":
            raise SystemExit(f"the control socket breaks things on demand: 127.0.0.1:PORT or a path, not {where}")
        return web.TCPSite(runner, host, int(number))
    Path(where).unlink(missing_ok=True)
    return web.UnixSite(runner, where)


def command() -> typer.Typer:
    """The command line; its help carries the package's docstring."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    contract = inspect.getdoc(localfleet.faultproxy) or ""
    app.command(help="\n\n".join(f"\b\n{paragraph}" for paragraph in contract.split("\n\n")))(main)
    return app


if __name__ == "__main__":
    command()()
