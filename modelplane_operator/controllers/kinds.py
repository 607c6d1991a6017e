"""Which kinds the operator runs: one line for each, and what they need beside their controllers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from modelplane_operator.clients.collection import Index
from modelplane_operator.clients.gateways import Gateways
from modelplane_operator.clients.resources import ResourceType
from modelplane_operator.clients.secrets import Originals
from modelplane_operator.controllers import model_deployment, model_replica
from modelplane_operator.controllers.fleet_view import FleetView
from modelplane_operator.controllers.world import Kinds, World

ORIGINALS_SECONDS = 60.0  # users' Secrets are read again after so long

Indexes = Mapping[ResourceType, Mapping[str, Index]]


def kinds(world: World) -> Kinds:
    settings = world.settings
    fleet = FleetView(world.now)
    originals = Originals(world.hub, time.monotonic, ORIGINALS_SECONDS)
    return Kinds(
        controllers=(
            model_deployment.controller(fleet, timedelta(seconds=settings.drain_grace)),
            model_replica.controller(originals, Gateways(time.monotonic), settings.lifecycle),
        ),
        listeners=(fleet.listen,),
        on_health=(fleet.on_health,),
        indexes=_merged(model_deployment.INDEXES, model_replica.INDEXES),
    )


def _merged(*parts: Indexes) -> Indexes:
    """The indexes of several kinds; several may want to find the same type."""
    merged: defaultdict[ResourceType, dict[str, Index]] = defaultdict(dict)
    for part in parts:
        for kind, indexes in part.items():
            merged[kind].update(indexes)
    return merged
