"""The command line of the operator's image."""

from __future__ import annotations

import argparse
import asyncio
import gc
import socket
import sys
from functools import partial

from kubeloop.client.access import Access
from kubeloop.client.channel import speak_http2
from kubeloop.client.sockets import shrink_tls_buffers
from kubeloop.errors import ClientError
from kubeloop.tracing import Service, export_spans
from modelplane_operator import __version__, logs
from modelplane_operator.api import KINDS, crd
from modelplane_operator.kinds import TRAEFIK_ACCOUNT, hub_gateway, kinds
from modelplane_operator.operator import Build
from modelplane_operator.selectors import cel
from modelplane_operator.settings import Settings, SettingsError, traces_by_grpc, traces_enabled

EPILOG = """Every flag is an environment variable too: --log-level is MODELPLANE_LOG_LEVEL. The flag wins.
SIZE is a number of bytes, or one with Ki, Mi or Gi."""


def main(build: Build = kinds) -> None:
    """Parse the command line and run the command."""
    parser, arguments = _parse()
    if arguments.command == "crds":
        sys.stdout.write("---\n".join(crd.to_yaml(kind) for kind in KINDS))
        return
    try:
        settings = Settings.read(vars(arguments))
    except SettingsError as error:
        parser.error(str(error))
    try:
        access = settings.hub()
        if arguments.command == "run":
            _run(settings, access, build)
        elif arguments.command == "hub-gateway":
            _run(settings, access, partial(hub_gateway, traefik_account=TRAEFIK_ACCOUNT), name="hub-gateway")
        else:
            _run_key_service(settings, access)
    except (ClientError, OSError) as error:
        sys.exit(f"modelplane_operator: {error}")


def _parse() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return the parser, and the parsed arguments."""
    parser = argparse.ArgumentParser(prog="modelplane_operator", description="A control plane for AI inference.")
    parser.add_argument("--version", action="version", version=f"modelplane-operator {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the operator", description="Run the operator.", epilog=EPILOG)
    Settings.add_flags(run)
    commands.add_parser("crds", help="print the CustomResourceDefinitions of all kinds, to apply on a hub")
    gateway = commands.add_parser(
        "hub-gateway",
        help="reconcile InferenceGateways, and nothing else, for an operator with --hub-gateway=apart",
        description="Install the hub's gateway and keep it, by an account of its own.",
        epilog=EPILOG,
    )
    Settings.add_flags(gateway)
    keys = commands.add_parser("keys", help="tell the hub's gateway whether requests carry API keys of ModelServices")
    Settings.add_flags(keys, "kubeconfig", "listen", "log_level")
    arguments = parser.parse_args()
    return parser, arguments


def _run(settings: Settings, access: Access, build: Build, name: str = "operator") -> None:
    """Run the operator, or the hub gateway's part of it, with Kopf as the host."""
    from modelplane_operator.host import host  # noqa: PLC0415 - other commands do not need Kopf

    logs.configure(level=settings.log_level, json=not sys.stderr.isatty())
    speak_http2()
    shrink_tls_buffers()
    gc.set_threshold(20_000, 20, 100)  # the caches hold many objects for long: docs/internals/performance.md
    cel.compile("true")  # parsing the grammar takes half a second, which the first decision would have to wait for
    service = Service("modelplane-operator", __version__, socket.gethostname())
    with export_spans("" if traces_enabled() else None, service, traces_by_grpc()):
        asyncio.run(host(settings, access, build, name))


def _run_key_service(settings: Settings, access: Access) -> None:
    from modelplane_operator.routing.service import key_service  # noqa: PLC0415 - other commands serve nothing

    logs.configure(level=settings.log_level, json=not sys.stderr.isatty())
    speak_http2()
    asyncio.run(key_service.run(settings.listen, access))


if __name__ == "__main__":
    main()
