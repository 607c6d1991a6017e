"""Broken situations as users cause them, each with what has to be told of it: the cause, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.integration.kinds import GROUP, cache, config_map, deployment, endpoint, engine, gpus, pod, secret, service
from tests.support.manifests import Manifest

DEPLOYMENT, SERVICE, ENDPOINT, CACHE = "ModelDeployment", "ModelService", "ModelEndpoint", "ModelCache"

Make = Callable[[str, str], Sequence[Manifest]]


@dataclass(frozen=True, slots=True)
class Situation:
    """What somebody applies, what is looked at, and what its condition has to say."""

    make: Make
    """The objects, of a namespace and under a name."""
    says: tuple[str, ...]
    """What the message says: the cause first, then what mends it."""
    kind: str = DEPLOYMENT
    runs: bool = False
    """Whether its pods take nodes."""
    seconds: float = 60.0
    """After which it has to be told."""


def asking(cel: str = "", *, count: int = 1, **more: Any) -> Make:
    """A deployment whose engine asks for such devices; the rest goes to the deployment."""

    def make(space: str, name: str) -> Sequence[Manifest]:
        one = engine()
        one["members"][0]["nodeSelector"] = gpus(cel, count) if cel else gpus(count=count)
        return [deployment(space, name, engines=[one], **more)]

    return make


def running(*beside: Callable[[str], Manifest], container: Mapping[str, Any] | None = None, **settings: Any) -> Make:
    """A deployment of one engine with more in its container; the settings are the simulator's."""

    def make(space: str, name: str) -> Sequence[Manifest]:
        template = pod(**settings)
        template["spec"]["containers"][0].update(container or {})
        one = deployment(space, name, engines=[engine(template=template)])
        return [*(each(space) for each in beside), one, service(space, name)]

    return make


def spec_of(**more: Any) -> Make:
    """A deployment whose pods have more in their spec."""

    def make(space: str, name: str) -> Sequence[Manifest]:
        template = pod()
        template["spec"].update(more)
        return [deployment(space, name, engines=[engine(template=template)])]

    return make


def gang(nodes: int) -> Make:
    def make(space: str, name: str) -> Sequence[Manifest]:
        leader = {"role": "Leader", "nodeSelector": gpus(), "template": pod()}
        worker = {"role": "Worker", "worker": {"nodes": nodes - 1}, "nodeSelector": gpus(), "template": pod()}
        return [deployment(space, name, engines=[{"name": "vllm", "members": [leader, worker]}])]

    return make


def disaggregated(*args: str) -> Make:
    def make(space: str, name: str) -> Sequence[Manifest]:
        engines: list[Manifest] = []
        for phase in ("Prefill", "Decode"):
            one = engine(name=phase.lower(), phase=phase)
            one["members"][0]["template"]["spec"]["containers"][0]["args"] = ["--model=org/model", *args]
            engines.append(one)
        return [deployment(space, name, engines=engines, serving={"mode": "PrefillDecode"})]

    return make


def of(kind: Callable[..., Manifest], *args: Any, **more: Any) -> Make:
    return lambda space, name: [kind(space, name, *args, **more)]


def leading(url: str, **spec: Any) -> Make:
    """An endpoint, and a service over it."""
    return lambda space, name: [endpoint(space, name, url, **spec), service(space, name)]


def cached(source: str, block: Mapping[str, Any], **more: Any) -> Make:
    field = source[0].lower() + source[1:]

    def make(space: str, name: str) -> Sequence[Manifest]:
        return [{**cache(space, name), "spec": {"source": source, field: block, **more}}]

    return make


def env(name: str, key: str, kind: str = "secret") -> Mapping[str, Any]:
    return {"env": [{"name": "SETTING", "valueFrom": {f"{kind}KeyRef": {"name": name, "key": key}}}]}


def guarded(*secrets: str) -> Make:
    def make(space: str, name: str) -> Sequence[Manifest]:
        one = service(space, name, (1, {"model": "nobody"}))
        one["spec"]["auth"] = {"apiKeys": {"secretRefs": [{"name": each} for each in secrets]}}
        return [one]

    return make


def with_credentials(name: str, key: str) -> Make:
    return leading("https://inference.example.com", credentials={"secretRef": {"name": name, "key": key}})


def raw(kind: str, spec: Mapping[str, Any]) -> Make:
    group = "inference.devopstoolkit.ai/v1alpha1" if kind == "LLMInference" else GROUP
    metadata = lambda space, name: {"name": name, "namespace": space}  # noqa: E731
    return lambda space, name: [{"apiVersion": group, "kind": kind, "metadata": metadata(space, name), "spec": spec}]


MEMORY = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{}")) >= 0'
HOLDS: Mapping[str, Callable[[str], Manifest]] = {
    "settings": lambda space: config_map(space, "settings", present="yes"),
    "token": lambda space: secret(space, "token", present="yes"),
    "keys": lambda space: secret(space, "no-keys"),
}

SITUATIONS: Mapping[str, Situation] = {
    # No place ---
    "typed-value": Situation(asking('device.attributes["gpu.nvidia.com"].architecture == "Hoper"'), ()),
    "typed-attribute": Situation(asking('device.attributes["gpu.nvidia.com"].archtecture == "Hopper"'), ()),
    "typed-driver": Situation(asking('device.driver == "gpu.nvida.com"'), ()),
    "no-expression": Situation(asking("device.driver =="), ()),
    "version-as-text": Situation(asking('device.attributes["gpu.nvidia.com"].cudaComputeCapability == "9.0.0"'), ()),
    "memory-as-number": Situation(asking('device.capacity["gpu.nvidia.com"].memory > 20'), ()),
    "no-such-gpu": Situation(asking(MEMORY.format("200Gi")), ()),
    "too-many-devices": Situation(asking(count=16), ()),
    "too-many-replicas": Situation(asking(replicas=40), (), runs=True),
    "large-gang": Situation(gang(9), ()),
    "no-such-label": Situation(asking(clusterSelector={"matchLabels": {"region": "eu"}}), ()),
    "no-such-cache": Situation(asking(modelCacheRef={"name": "nowhere"}), ()),
    # Placed, and does not run ---
    "no-secret": Situation(running(container=env("token-of-nobody", "key")), (), runs=True),
    "no-key": Situation(running(HOLDS["token"], container=env("token", "absent")), (), runs=True),
    "no-config-map": Situation(running(container=env("settings-of-nobody", "key", "configMap")), (), runs=True),
    "no-pull-secret": Situation(spec_of(imagePullSecrets=[{"name": "registry"}]), (), runs=True),
    "crash-loop": Situation(running(crash=1), (), runs=True),
    "out-of-memory": Situation(running(crash=137, crash_after_seconds=1), (), runs=True),
    "hangs": Situation(running(hang="true"), (), runs=True),
    "slow": Situation(running(startup_seconds=900), (), runs=True),
    "fails": Situation(running(error_rate=1), (), SERVICE, runs=True),
    "wrong-port": Situation(running(container={"args": ["--model=org/model", "--port=9000"]}), (), runs=True),
    "no-cache-transfer": Situation(disaggregated(), (), runs=True),
    "forbidden-annotation": Situation(running(), (), runs=True),
    "host-network": Situation(spec_of(hostNetwork=True), ()),
    # Services ---
    "selects-nothing": Situation(of(service, (1, {"model": "crash-lop"})), (), SERVICE),
    "selects-everything": Situation(of(service, (1, {})), (), SERVICE),
    "no-api-keys": Situation(guarded("keys-of-nobody"), (), SERVICE),
    "empty-api-keys": Situation(guarded("no-keys"), (), SERVICE),
    # Endpoints ---
    "no-such-host": Situation(leading("https://no-such-host.invalid"), (), ENDPOINT),
    "refuses": Situation(leading("http://10.90.0.1:9"), (), ENDPOINT),
    "metadata": Situation(leading("http://169.254.169.254"), (), ENDPOINT),
    "cluster-address": Situation(leading("https://10.140.0.1"), (), ENDPOINT),
    "in-cluster-name": Situation(leading("http://vllm.ml-team.svc.cluster.local:8000"), (), ENDPOINT),
    "url-with-path": Situation(leading("https://inference.example.com/v1/models"), (), ENDPOINT),
    "no-credentials": Situation(with_credentials("provider-of-nobody", "token"), (), ENDPOINT),
    "no-credentials-key": Situation(with_credentials("token", "absent"), (), ENDPOINT),
    # Caches ---
    "cache-no-token": Situation(
        cached("HuggingFace", {"repo": "org/model", "sizeGiB": 1, "tokenSecretRef": {"name": "hf", "key": "token"}}),
        (),
        CACHE,
    ),
    "cache-nowhere": Situation(
        cached("HuggingFace", {"repo": "org/model", "sizeGiB": 1}, clusterSelector={"matchLabels": {"region": "eu"}}),
        (),
        CACHE,
    ),
    "cache-fails": Situation(cached("HuggingFace", {"repo": "org/no-such-model", "sizeGiB": 1}), (), CACHE),
    "cache-no-claim": Situation(cached("PersistentVolumeClaim", {"claimName": "weights"}), (), CACHE),
    "llm-no-cluster": Situation(
        raw("LLMInference", {"model": "org/model", "providerConfigName": "nowhere", "gpu": 1}), (), "LLMInference"
    ),
    "llm-no-memory": Situation(
        raw("LLMInference", {"model": "org/model", "placement": "Fleet", "gpu": 1}), (), "LLMInference"
    ),
}
