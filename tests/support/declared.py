"""The controllers that the operator runs."""

from __future__ import annotations

from dataclasses import replace

from kubeloop.client.access import Access
from kubeloop.watched import Controllers
from modelplane_operator.kinds import kinds
from modelplane_operator.operator import assemble
from modelplane_operator.settings import Settings
from modelplane_operator.world import World


async def declared(hub_gateway: str = "helm") -> Controllers:
    """All of them, with Helm."""
    built: list[Controllers] = []

    def build(world: World) -> Controllers:
        built.append(kinds(world))
        return built[0]

    assemble(replace(Settings(), helm="helm", hub_gateway=hub_gateway), Access("https://127.0.0.1:1"), build)
    return built[0]
