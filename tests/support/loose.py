"""Definitions of our kinds as they were before anything was bounded, for objects that were stored then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import yaml

from modelplane_operator.api import Kind, crd
from tests.support.api import Api
from tests.support.manifests import Manifest

BOUNDS = {
    "minLength", "maxLength", "pattern", "minimum", "maximum", "minItems", "maxItems", "maxProperties",
    "x-kubernetes-validations",
}  # fmt: skip
SECONDS = 30.0


def loose(kind: Kind) -> Manifest:
    """The definition of a kind, with no bound and no rule in its spec."""
    definition = crd.definition(kind)
    (version,) = definition["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = _loose(properties["spec"])
    return definition


def _loose(node: Any) -> Any:
    match node:
        case {"type": str()}:
            return {name: _loose(part) for name, part in node.items() if name not in BOUNDS}
        case dict():
            return {name: _loose(part) for name, part in node.items()}
        case _:
            return node


@asynccontextmanager
async def loosely(api: Api, kind: Kind, probe: Manifest) -> AsyncIterator[None]:
    """A server that takes anything for a kind, once it takes the probe; afterwards, one that does not."""
    await _define(api, loose(kind))
    try:
        await _until(api, probe, taken=True)
        yield
    finally:
        await _define(api, crd.definition(kind))
        await _until(api, probe, taken=False)


async def _define(api: Api, definition: Manifest) -> None:
    flags = ("--server-side", "--force-conflicts", "--field-manager=loose")
    await api.kubectl("apply", *flags, "-f", "-", stdin=yaml.safe_dump(definition))


async def _until(api: Api, probe: Manifest, *, taken: bool) -> None:
    """The server takes a changed definition into use after a moment."""
    async with asyncio.timeout(SECONDS):
        while (await api.refusal(probe) == "") != taken:  # noqa: ASYNC110 - a server that wakes nobody
            await asyncio.sleep(0.05)
