"""What the simulator reads in a pod object: parsed once, frozen."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from localfleet.engine.settings import ANNOTATION_PREFIX, ARGUMENT_PREFIX, Settings, read
from localfleet.kubeclient import Manifest, entries, section, words

ENGINE, SIDECAR = "engine", "pd-sidecar"
SERVING_LABEL = "modelplane.ai/serving"
PHASE_LABEL = "llm-d.ai/role"
WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
SERVING_PORT, PREFILLED_PORT = 8000, 8001
KUBELET_GRACE = 30


class Server(StrEnum):
    """Who listens on a pod's port."""

    ENGINE = ENGINE
    SIDECAR = SIDECAR


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe rule. `port` is None for what we cannot ask (exec): that succeeds while the container runs."""

    port: int | None
    path: str | None
    initial_delay: float
    period: float
    failures: int
    successes: int


@dataclass(frozen=True, slots=True)
class Container:
    """One container: what it declares and how it is probed."""

    name: str
    image: str
    ports: tuple[int, ...]
    startup: Probe | None
    readiness: Probe | None
    liveness: Probe | None


@dataclass(frozen=True, slots=True)
class Termination:
    """When a deleted pod's engine is told to stop, and when it is stopped."""

    stop_at: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod with an engine."""

    namespace: str
    name: str
    uid: str
    node: str
    address: str | None
    running: bool
    role: str
    models: tuple[str, ...]
    settings: Settings
    containers: tuple[Container, ...]
    servers: Mapping[int, Server]
    restarts: bool
    gates: tuple[str, ...]
    termination: Termination | None
    hook: tuple[str, ...]
    """The preStop command of the engine; empty where it only sleeps, or does nothing."""
    env: Mapping[str, str]
    """Variables of the engine that have a value in the pod."""
    calls_tools: bool = True
    """Whether the model calls tools: vLLM refuses them without its flags."""


def has_engine(manifest: Manifest) -> bool:
    """Whether a pod object is one of ours."""
    return any(container["name"] == ENGINE for container in entries(manifest, "spec", "containers"))


def read_pod(manifest: Manifest, *, defaults: Settings) -> Pod:
    """The pod that a manifest describes; raises SettingError when its settings mean nothing."""
    metadata, spec, status = section(manifest, "metadata"), section(manifest, "spec"), section(manifest, "status")
    labels: Mapping[str, str] = section(metadata, "labels")
    containers = tuple(map(_read_container, entries(spec, "containers")))
    engine = next(entry for entry in entries(spec, "containers") if entry["name"] == ENGINE)
    line = tuple(_command_line(engine))
    settings = read({**_annotated(metadata), **_argued(line)}, onto=defaults)
    is_vllm = "vllm" in engine["image"] and not any("sglang" in word for word in line)
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node=spec.get("nodeName", ""),
        address=status.get("podIP"),
        running=status.get("phase") == "Running",
        role=_role(labels),
        models=(settings.model,) if settings.model else _models(line, engine["image"]),
        settings=settings,
        containers=containers,
        servers=dict(_servers(containers, labels)),
        restarts=spec.get("restartPolicy", "Always") != "Never",
        gates=tuple(gate["conditionType"] for gate in entries(spec, "readinessGates")),
        termination=_read_termination(metadata, engine),
        hook=()
        if _pre_stop_seconds(engine) is not None
        else tuple(words(engine, "lifecycle", "preStop", "exec", "command")),
        env={entry["name"]: entry["value"] for entry in entries(engine, "env") if "value" in entry},
        # Without the first flag, vLLM makes no parser, so that it also refuses a tool that a request names.
        calls_tools=not is_vllm or ("--enable-auto-tool-choice" in line and any(_values(line, "--tool-call-parser"))),
    )


def _read_container(entry: Manifest) -> Container:
    named: dict[str | None, int] = {port.get("name"): port["containerPort"] for port in entries(entry, "ports")}
    return Container(
        name=entry["name"],
        image=entry["image"],
        ports=tuple(port["containerPort"] for port in entries(entry, "ports")),
        startup=_read_probe(entry.get("startupProbe"), named),
        readiness=_read_probe(entry.get("readinessProbe"), named),
        liveness=_read_probe(entry.get("livenessProbe"), named),
    )


def _read_probe(rule: Manifest | None, named: Mapping[str | None, int]) -> Probe | None:
    if rule is None:
        return None
    http = section(rule, "httpGet")
    target = http or section(rule, "tcpSocket") or section(rule, "grpc")
    port: int | str | None = target.get("port")
    return Probe(
        port=named.get(port) if isinstance(port, str) else port,
        path=http.get("path", "/") if http else None,
        initial_delay=rule.get("initialDelaySeconds", 0),
        period=rule.get("periodSeconds", 10),
        failures=rule.get("failureThreshold", 3),
        successes=rule.get("successThreshold", 1),
    )


def _servers(containers: tuple[Container, ...], labels: Mapping[str, str]) -> Iterator[tuple[int, Server]]:
    probed = {entry.name: entry.readiness.port for entry in containers if entry.readiness and entry.readiness.port}
    for entry in containers:
        match entry.name:
            case "engine":
                fallback = (SERVING_PORT,) if SERVING_LABEL in labels else ()
                for port in entry.ports or ((probed[ENGINE],) if ENGINE in probed else fallback):
                    yield port, Server.ENGINE
            case "pd-sidecar":
                for port in entry.ports or (SERVING_PORT,):
                    yield port, Server.SIDECAR
            case _:
                pass


def _role(labels: Mapping[str, str]) -> str:
    if phase := labels.get(PHASE_LABEL):
        return phase
    match labels.get(WORKER_INDEX_LABEL):
        case None:
            return "standalone"
        case "0":
            return "leader"
        case _:
            return "worker"


def _command_line(engine: Manifest) -> Iterator[str]:
    """The command line, with shell lines (`sh -c "vllm serve ..."`) taken apart."""
    for word in (*words(engine, "command"), *words(engine, "args")):
        if " " not in word:
            yield word
            continue
        try:
            yield from shlex.split(word)
        except ValueError:  # not a shell line after all
            yield word


def _models(line: tuple[str, ...], image: str) -> tuple[str, ...]:
    """The names the engine would serve, read as vLLM and SGLang read them; else the image's own name."""
    return (
        tuple(_values(line, "--served-model-name"))
        or tuple(_values(line, "--model"))[:1]
        or tuple(_values(line, "--model-path"))[:1]
        or tuple(_values(line, "serve"))[:1]
        or (image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[0],)
    )


def _values(line: tuple[str, ...], flag: str) -> Iterator[str]:
    for index, word in enumerate(line):
        if word.startswith(f"{flag}="):
            yield word.partition("=")[2]
        elif word == flag:
            for value in line[index + 1 :]:
                if value.startswith("-"):
                    break
                yield value


def _annotated(metadata: Manifest) -> dict[str, str]:
    annotations: Mapping[str, str] = section(metadata, "annotations")
    return {
        key.removeprefix(ANNOTATION_PREFIX): value
        for key, value in annotations.items()
        if key.startswith(ANNOTATION_PREFIX)
    }


def _argued(line: tuple[str, ...]) -> dict[str, str]:
    pairs = (word.removeprefix(ARGUMENT_PREFIX).partition("=") for word in line if word.startswith(ARGUMENT_PREFIX))
    return {name: value for name, _, value in pairs}


def _read_termination(metadata: Manifest, engine: Manifest) -> Termination | None:
    if "deletionTimestamp" not in metadata:
        return None
    deadline = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp()
    grace: float = metadata.get("deletionGracePeriodSeconds", KUBELET_GRACE)
    sleeps = _pre_stop_seconds(engine)
    return Termination(stop_at=deadline - grace + min(grace if sleeps is None else sleeps, grace), deadline=deadline)


def _pre_stop_seconds(engine: Manifest) -> float | None:
    """How long the preStop hook sleeps, as a sleep action or as a `sleep N` command; None for any other command."""
    hook = section(engine, "lifecycle", "preStop")
    if "sleep" in hook:
        return float(section(hook, "sleep").get("seconds", 0))
    line = " ".join(command := words(hook, "exec", "command")).split()
    if len(command) > 3:  # more than `sh -c "sleep N"`
        return None
    for word, after in pairwise(line):
        if word.endswith("sleep") and after.removesuffix("s").isdigit():
            return float(after.removesuffix("s"))
    return None if command else 0.0
