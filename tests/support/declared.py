"""The controllers that the operator runs."""

from __future__ import annotations

from dataclasses import replace

from modelplane_operator.clients.access import Access
from modelplane_operator.controllers.kinds import kinds
from modelplane_operator.runtime.operator import assemble
from modelplane_operator.runtime.watched import Controllers
from modelplane_operator.runtime.world import World
from modelplane_operator.settings import Settings


async def declared(hub_gateway: str = "helm") -> Controllers:
    """All of them, with Helm."""
    built: list[Controllers] = []

    def build(world: World) -> Controllers:
        built.append(kinds(world))
        return built[0]

    assemble(replace(Settings(), helm="helm", hub_gateway=hub_gateway), Access("https://127.0.0.1:1"), build)
    return built[0]
