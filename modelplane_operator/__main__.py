"""The command of the image."""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from modelplane_operator.api import KINDS, crd
from modelplane_operator.api.base import Key
from modelplane_operator.clients.access import Access, read_kubeconfig
from modelplane_operator.clients.errors import ClientError
from modelplane_operator.clients.kube import connect
from modelplane_operator.controllers.explain import explain
from modelplane_operator.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="modelplane_operator", description="A control plane for AI inference.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("crds", help="print the CustomResourceDefinitions of all kinds, to apply on a hub")
    why = commands.add_parser("explain", help="say where a ModelDeployment's replicas would be placed now, and why")
    why.add_argument("deployment", type=_key, metavar="NAMESPACE/NAME")
    why.add_argument("--kubeconfig", type=Path, help="of the hub (default: KUBECONFIG, else ~/.kube/config)")
    asked = parser.parse_args()
    match asked.command:
        case "crds":
            sys.stdout.write("---\n".join(crd.to_yaml(kind) for kind in KINDS))
        case _:
            try:
                kubeconfig = asked.kubeconfig or Settings.read().kubeconfig
                access = read_kubeconfig(kubeconfig.read_text(), folder=kubeconfig.parent)
                said = asyncio.run(_explain(asked.deployment, access))
            except (ClientError, OSError) as error:
                sys.exit(f"modelplane_operator: {error}")
            sys.stdout.write(f"{said}\n")


def _key(text: str) -> Key:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise argparse.ArgumentTypeError(f"write NAMESPACE/NAME, for example ml-team/qwen3-8b, not {text}")
    return Key(namespace, name)


async def _explain(key: Key, access: Access) -> str:
    async with connect(access) as hub:
        return await explain(key, hub, now=datetime.now(UTC))


if __name__ == "__main__":
    main()
