"""What the serving pods of an engine play in their replica: alone, or one half of a split."""

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
    connector: str = "nixlv2"
    """How the sidecar has the engines hand over what they have read."""
    bootstrap_port: str | None = None
    """Where SGLang's prefill engines wait for decode engines, unless it is where sidecars look by themselves."""


def part_of(replica: ModelReplica, engine: PlacedEngine, images: Images = TESTED) -> Part | CannotRender:
    """The part of one engine; by its phase, never by its name."""
    # SGLang is told apart since revision 2.
    sglang = runs_sglang(engine) and replica.spec.pod_revision >= 2
    kind = _METRICS_OF.get(engine.type, engine.type) if engine.type else "sglang" if sglang else None
    engines = {labels.ENGINE_TYPE: kind} if kind else {}
    if engine.phase is None:
        return Part(labels=engines)
    shared = {
        **engines,
        labels.PICKER_ROLE: engine.phase.lower(),
        labels.PICKER_SERVING: "true",
        labels.PICKER_APP: replica.metadata.name,
    }
    env = () if sglang else _NIXL
    if engine.phase == "Prefill":
        return Part(labels=shared, env=env)
    port = _decode_port(engine)
    if isinstance(port, CannotRender):
        return port
    image = images.of_sidecar(replica.spec.pod_revision)
    if not sglang:
        return Part(port=port, labels=shared, env=env, sidecar_image=image)
    prefill = next((serving_container(one) for one in replica.spec.engines if one.phase == "Prefill"), None)
    bootstrap = flag_value(prefill, "--disaggregation-bootstrap-port") if prefill else None
    return Part(port, shared, env, image, "sglang", bootstrap)


_METRICS_OF: Mapping[str, str] = {"triton": "triton-tensorrt-llm"}
"""What the picker calls the metrics of an engine, where that is not the engine's name."""


_METRICS: Final = "/metrics"
_METRICS_AT: Mapping[str, str] = {"trtllm-serve": "/prometheus/metrics"}
"""Where Prometheus and the picker find the metrics of an engine, if elsewhere."""


def metrics_path(replica: ModelReplica) -> str:
    """Return where the metrics of a replica's engines are; where these differ, the usual path."""
    paths = {_METRICS_AT.get(engine.type or "", _METRICS) for engine in replica.spec.engines}
    return paths.pop() if len(paths) == 1 else _METRICS


def runs_sglang(engine: PlacedEngine | DeployedEngine) -> bool:
    """True if the engine is SGLang, by what it is said to be or by its command."""
    container = serving_container(engine)
    return engine.type == "sglang" if engine.type else container is not None and is_sglang(container)


def ports(replica: ModelReplica) -> range:
    """Return the ports by which each serving pod of a replica is asked: one for each rank of its engines."""
    return range(SERVING_PORT, SERVING_PORT + replica.spec.engines[0].ranks)


def serving_container(engine: PlacedEngine | DeployedEngine) -> Container | None:
    """The container that answers requests; None when its member has no pod."""
    member = next(member for member in engine.members if member.role != "Worker")
    return member.template.spec.containers[0] if member.template.spec else None


# How the two halves find each other to hand over the cache of keys and values.
_NIXL: tuple[Manifest, ...] = (
    {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": NIXL_PORT},
)


def untransferred(replica: ModelReplica) -> str:
    """Which engines of a split replica are not told to hand over their cache, and what tells them; empty without any.

    What nobody can read without running it is taken to be right.
    """
    return "; ".join(
        f"engine {engine.name} needs {flag}" for engine in replica.spec.engines if (flag := _transfer_lacking(engine))
    )


def _transfer_lacking(engine: PlacedEngine) -> str:
    container = serving_container(engine)
    if engine.phase is None or container is None or not is_legible(container):
        return ""
    if runs_sglang(engine):
        mode = engine.phase.lower()
        told = flag_value(container, "--disaggregation-mode")
        unknown = _is_unknown(container, told)
        return "" if unknown or told == mode else f"`--disaggregation-mode={mode}`"
    known = mentions(container, "--kv-transfer-config") or not is_complete(container)
    return "" if known else "`--kv-transfer-config`"


def _is_unknown(container: Container, told: str | None) -> bool:
    """Whether only the engine knows the value of a flag: a variable holds it, or may hold the flag itself."""
    return not is_complete(container) if told is None else "$" in told or "`" in told


def misheard(engine: DeployedEngine) -> str:
    """Why the engine cannot be told `--port` as it is; empty when it is not told, or when it can."""
    container = serving_container(engine)
    if container is None or not is_legible(container) or flag_value(container, "--port") is None:
        return ""
    if engine.phase != "Decode":
        return unheard(engine)
    port = _decode_port(engine)
    return port.message if isinstance(port, CannotRender) else ""


def unheard(engine: PlacedEngine | DeployedEngine) -> str:
    """Why nobody may hear the engine where it is asked, by its arguments; empty when they give no reason."""
    container = serving_container(engine)
    if container is None or not is_legible(container):
        return ""
    wanted = DECODE_PORT if engine.phase == "Decode" else SERVING_PORT
    told = flag_value(container, "--port")
    if _is_unknown(container, told):
        return ""
    if told is None and runs_sglang(engine):
        return f"engine {engine.name} is SGLang, which listens on 30000 unless it is told `--port={wanted}`"
    if told is None and engine.phase == "Decode":
        return (
            f"engine {engine.name} is not told `--port={DECODE_PORT}`: vLLM then listens on {SERVING_PORT}, which the "
            "sidecar of a decode engine takes"
        )
    if engine.phase != "Decode" and told is not None and _number(told) not in {None, SERVING_PORT}:
        return f"engine {engine.name} is told `--port {told}`, and is asked on {SERVING_PORT}: let it listen there"
    return ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 2**16 else None


def _decode_port(engine: PlacedEngine | DeployedEngine) -> int | CannotRender:
    container = serving_container(engine)
    text = flag_value(container, "--port") if container else None
    if text is None or "$" in text:  # what a variable holds is known when the engine runs
        return DECODE_PORT
    number = _number(text)
    if number is None:
        return CannotRender(
            Cause.DECODE_PORT,
            f"engine {engine.name} has `--port {text}`, which is not a port number: write a number such as "
            f"{DECODE_PORT}, since the sidecar must know where the engine listens",
        )
    if number == SERVING_PORT:
        return CannotRender(
            Cause.DECODE_PORT,
            f"engine {engine.name} listens on {SERVING_PORT}, which the sidecar of a decode engine takes: let it "
            f"listen on {DECODE_PORT}",
        )
    return number
