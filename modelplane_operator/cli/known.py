"""Look up names of objects on the hub for shell completion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError
from kubeloop.resource import of
from modelplane_operator.api import Kind
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.kubeconfig import HubTarget, target

NAMES: Final = re.compile("[-a-z0-9./]+")
"""Pattern of names that an API server can have. Some shells evaluate completions, and a server may be hostile."""


def names(kind: Kind, given: Mapping[str, Any], incomplete: str) -> Sequence[str]:
    """Return the names with this prefix; none if the hub chosen by the options cannot be read."""
    try:
        hub_target = target(Path(given["kubeconfig"]) if given.get("kubeconfig") else None, given.get("context"))
        return ask(hub_target, lambda kube: _list_names(kube, kind, given, hub_target, incomplete))
    # An error message would end up in the user's command line.
    except (ClientError, OSError, BaseExceptionGroup):
        return ()


async def _list_names(
    kube: Kube, kind: Kind, options: Mapping[str, Any], hub_target: HubTarget, incomplete: str
) -> Sequence[str]:
    """List the names of a kind, with the namespace if the prefix has one."""
    prefix, slash, _ = incomplete.partition("/")
    namespaced = of(kind).namespaced
    namespace = (prefix if slash else options.get("namespace") or hub_target.namespace) if namespaced else ""
    objects = (await kube.list(of(kind), namespace=namespace, bare=True)).items
    candidates = (
        f"{prefix}/{candidate['metadata']['name']}" if slash else candidate["metadata"]["name"] for candidate in objects
    )
    return sorted(
        candidate for candidate in candidates if candidate.startswith(incomplete) and NAMES.fullmatch(candidate)
    )
