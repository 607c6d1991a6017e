"""Derive the settings of an engine's serving pods from its role: alone, or one half of a prefill-decode split.

`pods` renders containers from these settings. Engines of a split differ in the ports that they
listen on, in the protocol for their KV cache, and in the sidecar of decode engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import labels
from modelplane_operator.api.model_deployment import DeployedEngine
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.api.pods import Container
from modelplane_operator.images import TESTED, Images
from modelplane_operator.models.replica.render.arguments import flag_value, is_complete, is_legible, is_sglang, mentions
from modelplane_operator.models.replica.render.problem import CannotRender, Cause

SERVING_PORT = 8000
"""Port on which a serving pod takes requests."""
DECODE_PORT = 8001  # the sidecar listens on SERVING_PORT
"""Default port of a decode engine."""
NIXL_PORT = "5557"
"""Port on which vLLM engines hand over their KV cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """Settings of an engine's serving pods that depend on its role."""

    port: int = SERVING_PORT
    """Port on which the engine itself listens."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels by which the endpoint picker recognizes the pods."""
    env: tuple[Manifest, ...] = ()
    """Variables that are added unless the user sets them."""
    sidecar_image: str | None = None
    """Image of the sidecar that takes requests on the serving port and forwards them to the engine, if there is
    one."""
    connector: str = "nixlv2"
    """Protocol by which engines hand over their KV cache."""
    bootstrap_port: str | None = None
    """Port on which prefill engines of SGLang wait for decode engines; None for the sidecar's default."""


def part_of(replica: ModelReplica, engine: PlacedEngine, images: Images = TESTED) -> Part | CannotRender:
    """Return the settings of one engine, by its phase, or the reason why it cannot be rendered."""
    # Revisions before 2 treat SGLang like vLLM.
    sglang = runs_sglang(engine) and replica.spec.pod_revision >= 2
    engine_type = _METRICS_TYPES.get(engine.type, engine.type) if engine.type else "sglang" if sglang else None
    type_label = {labels.ENGINE_TYPE: engine_type} if engine_type else {}
    if engine.phase is None:
        return Part(labels=type_label)
    shared = {
        **type_label,
        labels.PICKER_ROLE: engine.phase.lower(),
        labels.PICKER_SERVING: "true",
        labels.PICKER_APP: replica.metadata.name,
    }
    env = () if sglang else _NIXL
    if engine.phase == "Prefill":
        return Part(labels=shared, env=env)
    port = _find_decode_port(engine)
    if isinstance(port, CannotRender):
        return port
    image = images.of_sidecar(replica.spec.pod_revision)
    if not sglang:
        return Part(port=port, labels=shared, env=env, sidecar_image=image)
    prefill = next((find_serving_container(other) for other in replica.spec.engines if other.phase == "Prefill"), None)
    bootstrap = flag_value(prefill, "--disaggregation-bootstrap-port") if prefill else None
    return Part(port, shared, env, image, "sglang", bootstrap)


_METRICS_TYPES: Mapping[str, str] = {"triton": "triton-tensorrt-llm"}
"""Names of engine types in the picker's metrics configuration, where they differ."""


_METRICS: Final = "/metrics"
"""Default path of metrics."""
_METRICS_PATHS: Mapping[str, str] = {"trtllm-serve": "/prometheus/metrics"}
"""Paths of metrics by engine type, where they differ from the default."""


def metrics_path(replica: ModelReplica) -> str:
    """Return the metrics path of a replica's engines; the default if they differ."""
    paths = {_METRICS_PATHS.get(engine.type or "", _METRICS) for engine in replica.spec.engines}
    return paths.pop() if len(paths) == 1 else _METRICS


def runs_sglang(engine: PlacedEngine | DeployedEngine) -> bool:
    """True if the engine is SGLang, by its declared type or by its command."""
    container = find_serving_container(engine)
    return engine.type == "sglang" if engine.type else container is not None and is_sglang(container)


def ports(replica: ModelReplica) -> range:
    """Return the ports of a serving pod: one for each rank of its engines."""
    return range(SERVING_PORT, SERVING_PORT + replica.spec.engines[0].ranks)


def find_serving_container(engine: PlacedEngine | DeployedEngine) -> Container | None:
    """Return the container that serves requests; None if its member has no pod."""
    member = next(member for member in engine.members if member.role != "Worker")
    return member.template.spec.containers[0] if member.template.spec else None


# Prefill and decode engines use these to find each other and hand over the KV cache.
_NIXL: tuple[Manifest, ...] = (
    {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": NIXL_PORT},
)


def engines_without_kv_transfer(replica: ModelReplica) -> str:
    """Return a message with the engines of a split replica that lack a flag to transfer their KV cache; "" if none.

    Engines whose arguments cannot be read without running them count as correct.
    """
    return "; ".join(
        f"engine {engine.name} needs {flag}" for engine in replica.spec.engines if (flag := _find_missing_flag(engine))
    )


def _find_missing_flag(engine: PlacedEngine) -> str:
    """Return the missing flag of one engine; "" if none."""
    container = find_serving_container(engine)
    if engine.phase is None or container is None or not is_legible(container):
        return ""
    if runs_sglang(engine):
        mode = engine.phase.lower()
        value = flag_value(container, "--disaggregation-mode")
        unreadable = _is_unreadable(container, value)
        return "" if unreadable or value == mode else f"`--disaggregation-mode={mode}`"
    is_configured = mentions(container, "--kv-transfer-config") or not is_complete(container)
    return "" if is_configured else "`--kv-transfer-config`"


def _is_unreadable(container: Container, value: str | None) -> bool:
    """True if the value of a flag is known only at run time: a variable holds it, or may hold the flag itself."""
    return not is_complete(container) if value is None else "$" in value or "`" in value


def misheard(engine: DeployedEngine) -> str:
    """Return why the engine's `--port` argument conflicts with its role; "" if it has none or it fits."""
    container = find_serving_container(engine)
    if container is None or not is_legible(container) or flag_value(container, "--port") is None:
        return ""
    if engine.phase != "Decode":
        return unheard(engine)
    port = _find_decode_port(engine)
    return port.message if isinstance(port, CannotRender) else ""


def unheard(engine: PlacedEngine | DeployedEngine) -> str:
    """Return why the engine may not listen on the port that requests are sent to; "" if nothing suggests that."""
    container = find_serving_container(engine)
    if container is None or not is_legible(container):
        return ""
    expected = DECODE_PORT if engine.phase == "Decode" else SERVING_PORT
    port = flag_value(container, "--port")
    if _is_unreadable(container, port):
        return ""
    if port is None and runs_sglang(engine):
        return f"engine {engine.name} is SGLang, which listens on 30000: add `--port={expected}`"
    if port is None and engine.phase == "Decode":
        return (
            f"engine {engine.name} has no `--port={DECODE_PORT}`: add it, as vLLM otherwise listens on {SERVING_PORT},"
            " which the sidecar uses"
        )
    if engine.phase != "Decode" and port is not None and _parse_port(port) not in {None, SERVING_PORT}:
        return f"engine {engine.name} listens on --port {port} but is probed on {SERVING_PORT}: remove the flag"
    return ""


def _parse_port(text: str) -> int | None:
    """Return a port number, or None if the text is not one."""
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 2**16 else None


def _find_decode_port(engine: PlacedEngine | DeployedEngine) -> int | CannotRender:
    """Return the port on which a decode engine listens, or the reason why it cannot be used."""
    container = find_serving_container(engine)
    text = flag_value(container, "--port") if container else None
    if text is None or "$" in text:  # a variable's value is known only at run time
        return DECODE_PORT
    number = _parse_port(text)
    if number is None:
        return CannotRender(
            Cause.DECODE_PORT,
            f"engine {engine.name} has `--port {text}`, which is not a port number: write a number such as "
            f"{DECODE_PORT}, since the sidecar must know where the engine listens",
        )
    if number == SERVING_PORT:
        return CannotRender(
            Cause.DECODE_PORT,
            f"engine {engine.name} listens on {SERVING_PORT}, which the sidecar of a decode engine uses: change the"
            f" flag to `--port={DECODE_PORT}`",
        )
    return number
