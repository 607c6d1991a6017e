"""Names of objects that the hub has."""

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
"""Of objects that an API server has: some shells evaluate what is completed, and not every server is a friend's."""


def names(kind: Kind, given: Mapping[str, Any], incomplete: str) -> Sequence[str]:
    """Those that begin so; none where the hub that the options name cannot be asked."""
    try:
        found = target(Path(given["kubeconfig"]) if given.get("kubeconfig") else None, given.get("context"))
        return ask(found, lambda kube: _listed(kube, kind, given, found, incomplete))
    except (ClientError, OSError, BaseExceptionGroup):
        return ()


async def _listed(kube: Kube, kind: Kind, given: Mapping[str, Any], found: HubTarget, incomplete: str) -> Sequence[str]:
    before, slash, _ = incomplete.partition("/")
    namespaced = of(kind).namespaced
    namespace = (before if slash else given.get("namespace") or found.namespace) if namespaced else ""
    known = (await kube.list(of(kind), namespace=namespace, bare=True)).items
    shown = (f"{before}/{one['metadata']['name']}" if slash else one["metadata"]["name"] for one in known)
    return sorted(one for one in shown if one.startswith(incomplete) and NAMES.fullmatch(one))
