"""Broken situations as users cause them, each with what has to be told of it: the cause, and what mends it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from localfleet.kubeclient import MERGE
from tests.integration.harness import SYSTEM, Stage, condition, path_of, remote, said
from tests.integration.kinds import (
    POOLS,
    cache,
    cluster,
    config_map,
    deployment,
    endpoint,
    engine,
    gpus,
    pod,
    secret,
    service,
)
from tests.support.manifests import Manifest

DEPLOYMENT, SERVICE, ENDPOINT = "ModelDeployment", "ModelService", "ModelEndpoint"
CACHE, INFERENCE, CLUSTER = "ModelCache", "LLMInference", "InferenceCluster"

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
    why: tuple[str, ...] | None = None
    """What `modelplane why` says instead, where the message is cut, or where another cause comes first."""
    reason: str = ""
    """The reason of its Ready condition, where it is that of the part that fails."""
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


def inference(spec: Mapping[str, Any]) -> Make:
    def make(space: str, name: str) -> Sequence[Manifest]:
        metadata = {"name": name, "namespace": space}
        return [
            {"apiVersion": "inference.devopstoolkit.ai/v1alpha1", "kind": INFERENCE, "metadata": metadata, "spec": spec}
        ]

    return make


def registered(kubeconfig: str = "", key: str = "kubeconfig", pools: Mapping[str, str] | None = None) -> Make:
    """An InferenceCluster, with its Secret where there is something to put into it."""

    def make(_: str, name: str) -> Sequence[Manifest]:
        beside = [secret(SYSTEM, f"{name}-kubeconfig", **{key: kubeconfig})] if kubeconfig else []
        return [*beside, cluster(name, pools or {next(iter(POOLS)): next(iter(POOLS))})]

    return make


def kubeconfig(server: str = "https://127.0.0.1:1", **user: Any) -> str:
    return json.dumps(
        {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "users": [{"name": "it", "user": user or {"token": "none"}}],
        }
    )


def starting_from(**selector: str) -> Make:
    """A deployment, and the cache that it starts from."""

    def make(space: str, name: str) -> Sequence[Manifest]:
        weights = cache(space, f"{name}-weights")
        weights["spec"] |= {"clusterSelector": {"matchLabels": selector}} if selector else {}
        return [weights, deployment(space, name, modelCacheRef={"name": f"{name}-weights"})]

    return make


@asynccontextmanager
async def answering(stage: Stage, space: str) -> AsyncGenerator[None]:
    """A model answers, and its next template names a Secret that does not exist."""
    await stage.hub.apply(on_worker_1(space, "new-secret"))
    await stage.hub.ready(DEPLOYMENT, "new-secret", space)
    (before,) = await stage.hub.list("ModelReplica", space)
    try:
        yield
        (after,) = await stage.hub.list("ModelReplica", space)
        assert after["spec"] == before["spec"], "what answers is not changed"
        assert await stage.hub.list(ENDPOINT, space), "and stays in rotation"
    finally:
        await stage.hub.delete(DEPLOYMENT, "new-secret", space)
        await stage.hub.gone(DEPLOYMENT, "new-secret", space)


def naming_a_secret(space: str, name: str) -> Sequence[Manifest]:
    """The same deployment as on_worker_1, with a Secret that does not exist."""
    template = pod()
    template["spec"]["containers"][0].update(env("token-of-nobody", "key"))
    there = {"matchLabels": {"site": "worker-1"}}
    return [deployment(space, name, engines=[engine(template=template)], clusterSelector=there)]


@asynccontextmanager
async def tainted(stage: Stage, _: str) -> AsyncGenerator[None]:
    """Every cluster is kept free for maintenance."""
    for name in stage.workers:
        await stage.hub.patch(CLUSTER, name, spec={"taints": [{"key": "maintenance", "effect": "NoSchedule"}]})
    try:
        yield
    finally:
        for name in stage.workers:
            await stage.hub.patch(CLUSTER, name, spec={"taints": []})


@asynccontextmanager
async def short_of_quota(stage: Stage, space: str) -> AsyncGenerator[None]:
    """The cluster's administrator lets the namespace have one pod, which it has."""
    await stage.hub.apply(on_worker_1(space, "first"))
    await stage.hub.ready(DEPLOYMENT, "first", space)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": remote(space)}}
    await stage.workers["worker-1"].apply({**quota, "spec": {"hard": {"pods": "1"}}})
    try:
        yield
    finally:
        await stage.workers["worker-1"].delete("ResourceQuota", "few", remote(space))


@asynccontextmanager
async def without_addresses(stage: Stage, _: str) -> AsyncGenerator[None]:
    """Nothing gives addresses to load balancers of a cluster any more, and its gateway's loses the one it has."""
    worker = stage.workers["worker-1"]
    stage.fleet.fault("worker-1", "cloud", "pause")
    try:
        for one in await worker.list("Service"):
            if one["spec"].get("type") == "LoadBalancer" and one["status"].get("loadBalancer"):
                where = path_of("Service", one["metadata"]["name"], one["metadata"]["namespace"])
                lost = {"status": {"loadBalancer": {"ingress": None}}}
                await worker.client.request("PATCH", f"{where}/status", lost, content_type=MERGE)
        await stage.hub.wait(
            CLUSTER,
            "worker-1",
            holds=lambda found: "has no address yet" in said(found) and "such as MetalLB" in said(found),
            what="to say what gives it an address",
        )
        yield
    finally:
        stage.fleet.fault("worker-1", "cloud", "resume")
        await stage.settle()


@asynccontextmanager
async def cordoned(stage: Stage, _: str) -> AsyncGenerator[None]:
    """All nodes of a cluster are cordoned."""
    worker = stage.workers["worker-1"]
    nodes = [one["metadata"]["name"] for one in await worker.list("Node")]
    for name in nodes:
        await worker.patch("Node", name, spec={"unschedulable": True})
    try:
        await stage.hub.wait(
            CLUSTER,
            "worker-1",
            holds=lambda found: all(
                f"ool {pool}: 0 of 2 nodes usable (2 cordoned): node worker-1-"
                in condition(found, "Ready").get("message", "")
                for pool in POOLS
            ),
            what="to count what is cordoned",
        )
        await stage.hub.says("Ready=True/Degraded", CLUSTER, "worker-1")
        await stage.hub.says("GPUReady=False/NodesMissing", CLUSTER, "worker-1")
        yield
    finally:
        for name in nodes:
            await worker.patch("Node", name, spec={"unschedulable": None})
        await stage.hub.says("GPUReady=True", CLUSTER, "worker-1")


@asynccontextmanager
async def with_an_old_token(stage: Stage, _: str) -> AsyncGenerator[None]:
    """The token by which a cluster is asked has ended: its API server accepts it no more."""
    known = stage.kubeconfig("worker-1")
    config = yaml.safe_load(known["stringData"]["kubeconfig"])
    for one in config["users"]:
        one["user"] = {"token": "of-before"}
    await stage.hub.apply(secret(SYSTEM, "worker-1-kubeconfig", kubeconfig=json.dumps(config)))
    try:
        found = await stage.hub.says("ClusterReady=False/Unreachable", CLUSTER, "worker-1")
        assert "the server does not accept the credentials (401): give the kubeconfig others" in found["message"]
        yield
    finally:
        await stage.hub.apply(known)
        await stage.settle()


@asynccontextmanager
async def without_its_storage_class(stage: Stage, space: str) -> AsyncGenerator[None]:
    """The cluster is to keep weights in a StorageClass that it does not have."""
    existing = {"source": "Existing", "existing": {"cache": {"storageClassName": "nowhere"}}}
    await stage.hub.patch(CLUSTER, "worker-1", spec={"cluster": existing})
    await stage.hub.apply(cache(space, "kept", on="worker-1"))
    try:
        yield
    finally:
        for kind, name in ((DEPLOYMENT, "no-storage-class"), (CACHE, "kept")):
            await stage.hub.delete(kind, name, space)
            await stage.hub.gone(kind, name, space)
        await stage.hub.patch(CLUSTER, "worker-1", spec={"cluster": {"existing": {"cache": None}}})
        await stage.settle()


@asynccontextmanager
async def cut_off(stage: Stage, space: str) -> AsyncGenerator[None]:
    """A cluster with a model on it does not answer."""
    await stage.hub.apply(on_worker_1(space, "cut-off"))
    await stage.hub.ready(DEPLOYMENT, "cut-off", space)
    stage.fleet.cut("worker-1")
    try:
        yield
    finally:
        stage.fleet.heal("worker-1")
    await stage.settle()


def on_worker_1(space: str, name: str) -> Manifest:
    return deployment(space, name, clusterSelector={"matchLabels": {"site": "worker-1"}})


MEMORY = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{}")) >= 0'
HOLDS: Mapping[str, Callable[[str], Manifest]] = {
    "settings": lambda space: config_map(space, "settings", present="yes"),
    "token": lambda space: secret(space, "token", present="yes"),
    "keys": lambda space: secret(space, "no-keys"),
}

SITUATIONS: Mapping[str, Situation] = {
    # No place ---
    "typed-value": Situation(
        asking('device.attributes["gpu.nvidia.com"].architecture == "Hoper"'),
        ('needs "Hoper"', "modelplane hardware"),
    ),
    "typed-attribute": Situation(
        asking('device.attributes["gpu.nvidia.com"].archtecture == "Hopper"'),
        ("has no attribute gpu.nvidia.com/archtecture: it has architecture",),
    ),
    "typed-driver": Situation(
        asking('device.driver == "gpu.nvida.com"'),
        ('driver is "gpu.nvidia.com", needs "gpu.nvida.com"', "modelplane hardware"),
    ),
    "no-expression": Situation(
        asking("device.driver =="), ("1:17: the selector ends too early; complete the condition",)
    ),
    "memory-as-number": Situation(
        asking('device.capacity["gpu.nvidia.com"].memory > 20'),
        ("1:42: > cannot be applied to Quantity and int", 'write .isGreaterThan(quantity("20Gi"))'),
    ),
    "no-such-gpu": Situation(asking(MEMORY.format("200Gi")), ("memory is 80Gi, needs >= 200Gi", "modelplane hardware")),
    "too-many-devices": Situation(
        asking(count=16), ("request gpu needs 16 of device gpu, a node has 8", "request fewer devices per pod")
    ),
    "too-many-replicas": Situation(
        asking(replicas=40), ("of 40 replicas placed", "free nodes of that pool, or enlarge it"), runs=True
    ),
    "large-gang": Situation(gang(9), ("needs 9 nodes of one pool", "make the engine need fewer nodes")),
    "no-such-label": Situation(
        asking(clusterSelector={"matchLabels": {"region": "eu"}}),
        ("label region is absent, must be eu", "label the cluster, or select without region"),
    ),
    "no-such-cache": Situation(
        asking(modelCacheRef={"name": "nowhere"}),
        ("ModelCache nowhere not found", "until you create it, or remove modelCacheRef"),
    ),
    "cache-without-storage": Situation(
        starting_from(),
        ("it has no storage for ModelCache cache-without-storage-weights", "name a StorageClass in"),
        reason="NoCacheStorage",
    ),
    "cache-elsewhere": Situation(
        starting_from(region="eu"),
        (
            "label region is absent, must be eu by clusterSelector of ModelCache cache-elsewhere-weights",
            "in ModelCache cache-elsewhere-weights select without region",
        ),
        reason="NoMatchingClusters",
    ),
    # Placed, and does not run ---
    "no-secret": Situation(
        running(container=env("token-of-nobody", "key")),
        ("has no Secret token-of-nobody", "create what is missing"),
        runs=True,
        reason="SourceNotFound",
    ),
    "no-key": Situation(
        running(HOLDS["token"], container=env("token", "absent")),
        ("has no key absent in Secret token", "create what is missing"),
        runs=True,
    ),
    "no-config-map": Situation(
        running(container=env("settings-of-nobody", "key", "configMap")),
        ("has no ConfigMap settings-of-nobody", "create what is missing"),
        runs=True,
    ),
    "no-pull-secret": Situation(
        spec_of(imagePullSecrets=[{"name": "registry"}]),
        ("has no Secret registry", "create what is missing"),
        runs=True,
    ),
    "crash-loop": Situation(
        running(crash=1),
        ("crash loop, exit code 1", "kubectl logs -n modelplane-"),
        runs=True,
        reason="CrashLoop",
    ),
    "out-of-memory": Situation(
        running(crash=137, crash_after_seconds=1),
        ("killed by SIGKILL: probably its node ran out of memory", "kubectl logs -n modelplane-"),
        runs=True,
    ),
    "no-image": Situation(
        running(pull="fails"),
        (
            "the registry has no such image",
            "correct the image of the container, or name the Secret with the registry's credentials",
        ),
        runs=True,
    ),
    "hangs": Situation(
        running(hang="true"), ("no answer on port 8000 at /health since", "kubectl logs -n modelplane-"), runs=True
    ),
    "slow": Situation(
        running(startup_seconds=900),
        ("no answer on port 8000 at /health since", "kubectl logs -n modelplane-"),
        runs=True,
    ),
    # Services ---
    "selects-nothing": Situation(
        of(service, (1, {"model": "metadat"})),
        (
            "No ModelEndpoints matched the configured selectors (model=metadat)",
            "model=metadata (1)",
            "select one of these",
        ),
        SERVICE,
    ),
    "no-api-keys": Situation(
        guarded("keys-of-nobody"),
        ("Secret keys-of-nobody does not exist", "make it, with an API key under each client's name"),
        SERVICE,
        why=("No endpoint can answer",),
    ),
    "empty-api-keys": Situation(
        guarded("no-keys"),
        ("Secret no-keys holds no API key", "write one as a line of printable ASCII"),
        SERVICE,
        why=("No endpoint can answer",),
    ),
    # Endpoints ---
    "no-such-host": Situation(
        leading("https://no-such-host.invalid"),
        ("Host no-such-host.invalid cannot be resolved", "check the DNS of the hub"),
        ENDPOINT,
    ),
    "metadata": Situation(
        leading("http://169.254.169.254"),
        ("169.254.169.254 is link-local, which is where a cloud's metadata is",),
        ENDPOINT,
    ),
    "cluster-address": Situation(
        leading("https://10.140.0.1"),
        ("is an address of the hub's Services", "have this one added to the operator's setting allow-endpoints"),
        ENDPOINT,
    ),
    "in-cluster-name": Situation(
        leading("http://vllm.ml-team.svc.cluster.local:8000"),
        ("is a name inside the cluster", "write a full name from outside"),
        ENDPOINT,
    ),
    "no-credentials": Situation(
        with_credentials("provider-of-nobody", "token"),
        ("Secret provider-of-nobody does not exist", "make it, with the credentials under the key token"),
        ENDPOINT,
    ),
    "no-credentials-key": Situation(
        with_credentials("token", "absent"),
        ("Secret token has no key absent", "put the credentials under it"),
        ENDPOINT,
    ),
    # Caches ---
    "cache-nowhere": Situation(
        cached("HuggingFace", {"repo": "org/model", "sizeGiB": 1}, clusterSelector={"matchLabels": {"region": "eu"}}),
        ("No cluster matches clusterSelector", "label one, or correct it"),
        CACHE,
    ),
    "cache-no-storage": Situation(
        cached("HuggingFace", {"repo": "org/model", "sizeGiB": 1}),
        ("Clusters without storage for caches are left out", "name a StorageClass in spec.cluster.existing.cache"),
        CACHE,
    ),
    "cache-no-claim": Situation(
        cached("PersistentVolumeClaim", {"claimName": "weights"}),
        ("does not exist", "create it on the cluster, with the weights in it"),
        CACHE,
        reason="VolumeNotBound",
    ),
    "llm-no-cluster": Situation(
        inference({"model": "org/model", "providerConfigName": "nowhere", "gpu": 1}),
        ('Field providerConfigName "nowhere": no Secret of that name', "have the grant added to spec.llmInferences"),
        INFERENCE,
        why=('providerConfigName "nowhere": no Secret of that name', "ask the platform team to grant"),
    ),
    "llm-no-memory": Situation(
        inference({"model": "org/model", "placement": "Fleet", "gpu": 1}),
        ("does not follow from its name", "set spec.memory"),
        INFERENCE,
    ),
    # Clusters ---
    "no-kubeconfig": Situation(
        registered(), ("Secret modelplane-system/no-kubeconfig-kubeconfig does not exist: make it",), CLUSTER
    ),
    "no-kubeconfig-key": Situation(registered(kubeconfig(), "config"), ("has no key kubeconfig", "config"), CLUSTER),
    "no-context": Situation(
        registered('{"contexts": []}'), ("has no current-context: write the name of the context to use there",), CLUSTER
    ),
    "exec-kubeconfig": Situation(
        registered(kubeconfig(exec={"command": "aws"})),
        ("asks for exec, which is not run here; give it a token instead",),
        CLUSTER,
    ),
    "nothing-listens": Situation(
        registered(kubeconfig()),
        ("nothing listens there; check the server in the kubeconfig, and that the API server runs",),
        CLUSTER,
    ),
    "no-such-class": Situation(
        registered(kubeconfig(), pools={"pool": "nowhere"}), ("InferenceClass nowhere", "does not exist"), CLUSTER
    ),
}

BREAKS: Mapping[str, tuple[Callable[[Stage, str], AbstractAsyncContextManager[None]], Situation]] = {
    "tainted": (
        tainted,
        Situation(asking(), ("taint maintenance:NoSchedule is not tolerated", "remove the taint, or tolerate it")),
    ),
    "quota": (
        short_of_quota,
        Situation(
            lambda space, name: [on_worker_1(space, name)],
            ("exceeded quota: few", "quota"),
            runs=True,
            reason="PodsRejected",
        ),
    ),
    "new-secret": (
        answering,
        Situation(
            naming_a_secret,
            ("has no Secret token-of-nobody, which the new one names", "create what is missing"),
            runs=True,
            reason="SourceNotFound",
        ),
    ),
    "no-address": (
        without_addresses,
        Situation(
            lambda space, name: [on_worker_1(space, name)],
            ("has no address yet", "gives addresses to Services of type LoadBalancer there, such as MetalLB"),
        ),
    ),
    "cordoned": (
        cordoned,
        Situation(
            lambda space, name: [on_worker_1(space, name)],
            ("which has no usable node: 0 of ", "cordoned)", "uncordon, repair or add nodes: GPUReady"),
        ),
    ),
    "old-token": (
        with_an_old_token,
        Situation(
            lambda space, name: [on_worker_1(space, name)],
            ("worker-1: it does not answer", "see the conditions of that InferenceCluster"),
        ),
    ),
    "no-storage-class": (
        without_its_storage_class,
        Situation(
            lambda space, name: [deployment(space, name, modelCacheRef={"name": "kept"})],
            (
                "check that StorageClass nowhere exists and provides such volumes",
                "`kubectl describe pvc -n modelplane-",
            ),
            runs=True,
            seconds=90.0,
            reason="VolumeNotBound",
        ),
    ),
    "cut-off": (
        cut_off,
        Situation(
            lambda space, name: [on_worker_1(space, name)],
            ("Neither cluster worker-1 nor its gateway answers", "see ClusterReady of that"),
            runs=True,
        ),
    ),
}
"""What the platform does to models that are as they should be."""
