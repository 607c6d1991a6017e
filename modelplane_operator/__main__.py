"""The command of the image: `python -m modelplane_operator crds | kubectl apply -f -` installs our kinds on a hub."""

from __future__ import annotations

import argparse
import sys

from modelplane_operator.api import KINDS, crd


def main() -> None:
    parser = argparse.ArgumentParser(prog="modelplane_operator", description="A control plane for AI inference.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("crds", help="print the CustomResourceDefinitions of all kinds, to apply on a hub")
    parser.parse_args()
    sys.stdout.write("---\n".join(crd.to_yaml(kind) for kind in KINDS))


if __name__ == "__main__":
    main()
