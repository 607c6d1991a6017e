"""What the serving pods of an engine play in their replica: alone, or one half of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelplane_operator.api import labels
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.api.shared import Container
from modelplane_operator.rendering.images import TESTED, Images
from modelplane_operator.rendering.model_replica.arguments import flag_value
from modelplane_operator.rendering.model_replica.problem import CannotRender, Cause

SERVING_PORT = 8000
DECODE_PORT = 8001  # behind the sidecar, which takes 8000
NIXL_PORT = "5557"


@dataclass(frozen=True, slots=True)
class Part:
    """What is special about an engine's serving pods."""

    port: int = SERVING_PORT
    """Where the engine itself listens."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    env: tuple[Manifest, ...] = ()
    """Added unless the user sets a variable of that name."""
    sidecar_image: str | None = None
    """Takes the requests on the serving port, and passes them on to the engine."""


def part_of(replica: ModelReplica, engine: PlacedEngine, images: Images = TESTED) -> Part | CannotRender:
    """The part of one engine; by its phase, never by its name."""
    if engine.phase is None:
        return Part()
    shared = {
        labels.PICKER_ROLE: engine.phase.lower(),
        labels.PICKER_SERVING: "true",
        labels.PICKER_APP: replica.metadata.name,
    }
    if engine.phase == "Prefill":
        return Part(labels=shared, env=_NIXL)
    port = _decode_port(engine)
    if isinstance(port, CannotRender):
        return port
    return Part(port=port, labels=shared, env=_NIXL, sidecar_image=images.of_sidecar(replica.spec.pod_revision))


def serving_container(engine: PlacedEngine) -> Container | None:
    """The container that answers requests; None when its member has no pod."""
    member = next(member for member in engine.members if member.role != "Worker")
    return member.template.spec.containers[0] if member.template.spec else None


# How the two halves find each other to hand over the cache of keys and values.
_NIXL: tuple[Manifest, ...] = (
    {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": NIXL_PORT},
)


def _decode_port(engine: PlacedEngine) -> int | CannotRender:
    container = serving_container(engine)
    text = flag_value(container, "--port") if container else None
    if text is None:
        return DECODE_PORT
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**16):
        return CannotRender(
            Cause.DECODE_PORT,
            f"engine {engine.name} has `--port {text}`, which is not a port number: write a number such as "
            f"{DECODE_PORT}, since the sidecar must know where the engine listens",
        )
    if int(text) == SERVING_PORT:
        return CannotRender(
            Cause.DECODE_PORT,
            f"engine {engine.name} listens on {SERVING_PORT}, which the sidecar of a decode engine takes: let it "
            f"listen on {DECODE_PORT}",
        )
    return int(text)
