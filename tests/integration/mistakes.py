"""More broken situations: mistakes in pods, routes, LLMInferences and clusters, each with what has to be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.integration.harness import SYSTEM
from tests.integration.kinds import cache, cluster, deployment, endpoint, engine, gpus, pod, secret, service
from tests.integration.situations import (
    CACHE,
    CLUSTER,
    ENDPOINT,
    INFERENCE,
    SERVICE,
    Make,
    Situation,
    asking,
    cached,
    env,
    inference,
    kubeconfig,
    leading,
    of,
    registered,
    running,
    spec_of,
)
from tests.support.manifests import Manifest


def contained(**more: Any) -> Make:
    """A deployment whose container has more."""
    return running(container=more)


def mounting(**volume: Any) -> Make:
    """A deployment whose pods mount a volume."""
    return spec_of(volumes=[{"name": "data", **volume}])


def with_args(*args: str, **settings: Any) -> Make:
    """A deployment whose engine has these arguments more."""
    return running(container={"args": ["--model=org/model", *args]}, **settings)


def annotated(name: str, value: str, make: Make) -> Make:
    """The first object of a situation with an annotation."""

    def annotate(space: str, called: str) -> Sequence[Manifest]:
        first, *others = make(space, called)
        metadata = {**first["metadata"], "annotations": {name: value}}
        return [{**first, "metadata": metadata}, *others]

    return annotate


def by_secret(key: str = "kubeconfig", content: str = "", **spec: Any) -> Make:
    """An LLMInference on the cluster to which a Secret of its namespace leads."""

    def make(space: str, name: str) -> Sequence[Manifest]:
        (made,) = inference({"model": "org/model", "gpu": 1, "providerConfigName": name, **spec})(space, name)
        return [secret(space, name, **{key: content or kubeconfig()}), made]

    return make


def conflicting(space: str, name: str) -> Sequence[Manifest]:
    return [
        cache(space, f"{name}-cache", on="worker-1"),
        deployment(
            space, name, modelCacheRef={"name": f"{name}-cache"}, clusterSelector={"matchLabels": {"site": "worker-2"}}
        ),
    ]


def split_without_phases(space: str, name: str) -> Sequence[Manifest]:
    return [deployment(space, name, serving={"mode": "PrefillDecode"})]


def without_container(space: str, name: str) -> Sequence[Manifest]:
    template = pod()
    template["spec"]["containers"][0]["name"] = "vllm"
    return [deployment(space, name, engines=[engine(template=template)])]


def without_pod(space: str, name: str) -> Sequence[Manifest]:
    return [deployment(space, name, engines=[{"name": "vllm", "members": [{"nodeSelector": gpus()}]}])]


def of_cloud(source: str, **block: Any) -> Make:
    def make(_: str, name: str) -> Sequence[Manifest]:
        made = cluster(name, {"h100": "h100"})
        origin = {"source": source, source.lower(): {"region": "eu-west-1", **block}}
        return [{**made, "spec": {**made["spec"], "cluster": origin}}]

    return make


def named(**manifest: Any) -> Mapping[str, Any]:
    return manifest


ALL: Mapping[str, Situation] = {
    # No place ---
    "zero": Situation(lambda space, name: [deployment(space, name, replicas=0)], ()),
    "paused": Situation(annotated("crossplane.io/paused", "true", asking(count=16)), ()),
    "conflict": Situation(conflicting, ()),
    "two-engines-too-large": Situation(
        lambda space, name: [
            deployment(space, name, engines=[engine(name="a"), engine(name="b"), engine(name="c", copies=40)])
        ],
        (),
    ),
    "cache-waits": Situation(
        lambda space, name: [
            *cached("HuggingFace", {"repo": "org/model", "sizeGiB": 1, "tokenSecretRef": {"name": "hf"}})(space, "w"),
            deployment(space, name, modelCacheRef={"name": "w"}),
        ],
        (),
    ),
    "not-boolean": Situation(asking('device.attributes["gpu.nvidia.com"].architecture'), ()),
    "no-such-function": Situation(asking('device.driver.beginsWith("gpu")'), ()),
    "no-such-domain": Situation(asking('device.capacity["nvidia.com"].memory.isGreaterThan(quantity("1Gi"))'), ()),
    "bad-quantity": Situation(asking('device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("80 GB"))'), ()),
    # Placed, and does not run ---
    "listens-elsewhere": Situation(with_args("--port=9000"), (), runs=True),
    "listens-on-loopback": Situation(with_args("--host=127.0.0.1"), (), runs=True),
    "bad-image-name": Situation(contained(image="Vllm/OpenAI:latest"), (), runs=True),
    "no-claim": Situation(mounting(persistentVolumeClaim={"claimName": "weights"}), (), runs=True),
    "no-volume-secret": Situation(mounting(secret={"secretName": "of-nobody"}), (), runs=True),
    "no-volume-config": Situation(mounting(configMap={"name": "of-nobody"}), (), runs=True),
    "host-path": Situation(mounting(hostPath={"path": "/"}), (), runs=True),
    "too-much-memory": Situation(contained(resources={"requests": {"memory": "9000Gi"}}), (), runs=True),
    "too-many-cpus": Situation(contained(resources={"requests": {"cpu": "900"}}), (), runs=True),
    "no-such-node": Situation(spec_of(nodeSelector={"disk": "fast"}), (), runs=True),
    "privileged": Situation(contained(securityContext={"privileged": True}), (), runs=True),
    "no-priority-class": Situation(spec_of(priorityClassName="of-nobody"), (), runs=True),
    "no-account": Situation(spec_of(serviceAccountName="of-nobody"), (), runs=True),
    "no-runtime-class": Situation(spec_of(runtimeClassName="of-nobody"), (), runs=True),
    "usage-error": Situation(running(crash=2), (), runs=True),
    "segfault": Situation(running(crash=139), (), runs=True),
    "split-without-phases": Situation(split_without_phases, ()),
    "no-engine-container": Situation(without_container, ()),
    "no-pod": Situation(without_pod, ()),
    "no-env-from": Situation(contained(envFrom=[{"secretRef": {"name": "of-nobody"}}]), (), runs=True),
    # Services and endpoints ---
    "selects-a-dead-engine": Situation(running(crash=1), (), SERVICE, runs=True),
    "nothing-listens-there": Situation(leading("http://10.90.0.1:9"), (), SERVICE),
    "endpoint-nothing-listens": Situation(leading("http://10.90.0.1:9"), (), ENDPOINT),
    "ftp": Situation(leading("ftp://inference.example.com"), (), ENDPOINT),
    "with-password": Situation(leading("https://a:b@inference.example.com"), (), ENDPOINT),
    "loopback": Situation(leading("http://127.0.0.1:8000"), (), ENDPOINT),
    "private": Situation(leading("http://192.168.1.10:8000"), (), ENDPOINT),
    "google-metadata": Situation(leading("http://metadata.google.internal"), (), ENDPOINT),
    "bare-ipv6": Situation(leading("http://2001:db8::1:8000"), (), ENDPOINT),
    "no-url": Situation(leading("inference.example.com/v1"), (), ENDPOINT),
    "two-keys-one-missing": Situation(
        lambda space, name: [
            {
                **service(space, name, (1, {"model": "nobody"})),
                "spec": {
                    "endpoints": [{"weight": 1, "selector": {"matchLabels": {"model": "nobody"}}}],
                    "auth": {"apiKeys": {"secretRefs": [{"name": "token"}, {"name": "absent"}]}},
                },
            }
        ],
        (),
        SERVICE,
    ),
    "bad-credentials": Situation(
        lambda space, name: [
            secret(space, name, token="two\nlines"),
            endpoint(
                space, name, "https://inference.example.com", credentials={"secretRef": {"name": name, "key": "token"}}
            ),
        ],
        (),
        ENDPOINT,
    ),
    # Caches ---
    "cache-no-token": Situation(
        cached("HuggingFace", {"repo": "org/model", "sizeGiB": 1, "tokenSecretRef": {"name": "of-nobody"}}), (), CACHE
    ),
    # LLMInferences ---
    "llm-secret-without-key": Situation(by_secret("config"), (), INFERENCE),
    "llm-exec": Situation(by_secret(content=kubeconfig(exec={"command": "aws"})), (), INFERENCE),
    "llm-private": Situation(by_secret(content=kubeconfig("https://192.168.1.1:6443")), (), INFERENCE),
    "llm-no-yaml": Situation(by_secret(content="{"), (), INFERENCE),
    "llm-no-host": Situation(by_secret(content=kubeconfig("https://no-such-host.invalid")), (), INFERENCE),
    "llm-in-cluster": Situation(
        inference({"model": "org/model", "gpu": 1, "providerConfigName": "incluster"}), (), INFERENCE
    ),
    "llm-not-granted": Situation(
        inference({"model": "org/model", "gpu": 1, "providerConfigName": "worker-1"}), (), INFERENCE
    ),
    "llm-too-large": Situation(
        inference({"model": "org/model-900B", "placement": "Fleet", "gpu": 1, "memory": "900Gi"}), (), INFERENCE
    ),
    # Clusters ---
    "cluster-no-yaml": Situation(registered("{"), (), CLUSTER),
    "cluster-bad-authority": Situation(
        registered(kubeconfig(**{"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="})), (), CLUSTER
    ),
    "cluster-no-host": Situation(registered(kubeconfig("https://no-such-host.invalid")), (), CLUSTER),
    "cluster-aks": Situation(of_cloud("AKS"), (), CLUSTER),
    "cluster-plain-http": Situation(registered(kubeconfig("http://10.90.0.1:6443")), (), CLUSTER),
    "cluster-proxy": Situation(
        lambda space, name: registered(
            kubeconfig().replace('"server"', '"proxy-url": "http://10.90.0.1:3128", "server"')
        )(space, name),
        (),
        CLUSTER,
    ),
}
