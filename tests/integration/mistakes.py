"""More broken situations: mistakes in requests, pods, routes, LLMInferences and clusters, and in what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.integration.kinds import (
    ADA,
    HOPPER,
    cache,
    cluster,
    deployment,
    endpoint,
    engine,
    gpus,
    pod,
    secret,
    service,
)
from tests.integration.situations import (
    CLUSTER,
    ENDPOINT,
    INFERENCE,
    MEMORY,
    SERVICE,
    Make,
    Situation,
    asking,
    cached,
    guarded,
    inference,
    kubeconfig,
    leading,
    of,
    registered,
    running,
)
from tests.support.manifests import Manifest


def contained(**more: Any) -> Make:
    """A deployment whose container has more."""
    return running(container=more)


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


def with_two_lines(space: str, name: str) -> Sequence[Manifest]:
    """An endpoint with credentials that no header can carry."""
    credentials = {"secretRef": {"name": name, "key": "token"}}
    return [
        secret(space, name, token="two\nlines"),  # noqa: S106 - what is wrong with it
        endpoint(space, name, "https://inference.example.com", credentials=credentials),
    ]


def of_cloud(origin: Mapping[str, Any]) -> Make:
    """A cluster that a cloud would create."""

    def make(_: str, name: str) -> Sequence[Manifest]:
        registered = cluster(name, {"h100": "h100"})
        return [{**registered, "spec": {**registered["spec"], "cluster": origin}}]

    return make


MORE: Mapping[str, Situation] = {
    # No place ---
    "conflict": Situation(conflicting, ("label site is worker-2 for the deployment and worker-1 for its ModelCache",)),
    "too-many-copies": Situation(
        lambda space, name: [deployment(space, name, engines=[engine(), engine(name="c", copies=40)])],
        ("engine c needs 40 nodes of one pool, h100 has 2 in all", "make the engine need fewer nodes"),
    ),
    "not-boolean": Situation(
        asking('device.attributes["gpu.nvidia.com"].architecture'),
        ('architecture is "Hopper", not true or false',),
    ),
    "no-such-function": Situation(
        asking('device.driver.beginsWith("gpu")'), ("1:15: there is no function beginsWith()",)
    ),
    "no-such-domain": Situation(
        asking('device.capacity["nvidia.com"].memory.isGreaterThan(quantity("1Gi"))'),
        ("the device has no capacity nvidia.com/memory", "modelplane hardware"),
    ),
    "bad-quantity": Situation(
        asking('device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("80 GB"))'),
        ('"80 GB" is not a quantity: write a number with a suffix',),
    ),
    "nearly-enough": Situation(asking(MEMORY.format("81Gi")), ("memory is 80Gi, needs >= 81Gi: write 80Gi",)),
    "other-fleet-label": Situation(
        asking(clusterSelector={"matchLabels": {"site": "worker-3"}}),
        ("must be worker-3", "label the cluster"),
    ),
    "three-kinds-of-gpu": Situation(
        lambda space, name: [
            deployment(
                space,
                name,
                engines=[
                    engine(HOPPER, name="a"),
                    engine(ADA, name="b"),
                    engine('device.attributes["gpu.nvidia.com"].architecture == "Blackwell"', name="c"),
                ],
            )
        ],
        ("engine c", 'needs "Blackwell"', "modelplane hardware"),
    ),
    # Placed, and does not run ---
    "too-much-memory": Situation(
        contained(resources={"requests": {"memory": "9000Gi"}}),
        ("not enough memory on 2 nodes",),
        why=("not enough memory on 2 nodes", "request less"),
        runs=True,
    ),
    "too-many-cpus": Situation(
        contained(resources={"requests": {"cpu": "900"}}),
        ("not enough cpu on 2 nodes",),
        why=("not enough cpu on 2 nodes", "request less"),
        runs=True,
    ),
    "usage-error": Situation(
        running(crash=2), ("crash loop, exit code 2", "kubectl logs -n modelplane-"), runs=True, reason="CrashLoop"
    ),
    "segfault": Situation(
        running(crash=139), ("crash loop, exit code 139", "kubectl logs -n modelplane-"), runs=True, reason="CrashLoop"
    ),
    "dies-later": Situation(
        running(crash=1, crash_after_seconds=20), ("exit code 1", "kubectl logs -n modelplane-"), runs=True
    ),
    # Services and endpoints ---
    "selects-a-dead-engine": Situation(
        running(crash=1), ("crash loop, exit code 1", "kubectl logs -n modelplane-"), SERVICE, runs=True
    ),
    "nothing-listens": Situation(
        leading("http://10.90.0.1:9"), ("Requests fail with 502", "refuses connections to port 9"), SERVICE
    ),
    "ftp": Situation(
        leading("ftp://inference.example.com"), ("scheme ftp is not served: write http or https",), ENDPOINT
    ),
    "with-password": Situation(
        leading("https://a:b@inference.example.com"),
        ("holds a user name or password: take out everything up to the `@`",),
        ENDPOINT,
    ),
    "loopback": Situation(leading("http://127.0.0.1:8000"), ("127.0.0.1 is the gateway's own machine",), ENDPOINT),
    "private": Situation(
        leading("http://192.168.1.10:8000"),
        (
            (
                "192.168.1.10 is a private address: use another host, or have this one added to the operator's setting"
                " allow-endpoints"
            ),
        ),
        ENDPOINT,
    ),
    "google-metadata": Situation(
        leading("http://metadata.google.internal"),
        ("metadata.google.internal is a cloud's metadata service, which gives out credentials",),
        ENDPOINT,
    ),
    "bare-ipv6": Situation(
        leading("http://2001:db8::1:8000"), ("an IPv6 address stands in square brackets",), ENDPOINT
    ),
    "no-url": Situation(
        leading("inference.example.com/v1"), ("write it as https://host or https://host:port",), ENDPOINT
    ),
    "one-key-missing": Situation(
        guarded("token", "absent"),
        ("Secret absent does not exist", "make it, with an API key under each client's name"),
        SERVICE,
        why=("No endpoint can answer",),
    ),
    "two-lines": Situation(
        with_two_lines, ("holds no valid header value under token", "one line of printable ASCII"), ENDPOINT
    ),
    # LLMInferences ---
    "llm-secret-without-key": Situation(by_secret("config"), ("has no key kubeconfig",), INFERENCE),
    "llm-exec": Situation(
        by_secret(content=kubeconfig(exec={"command": "aws"})),
        ("asks for exec, which is not run here; give it a token instead",),
        INFERENCE,
    ),
    "llm-private": Situation(
        by_secret(content=kubeconfig("https://192.168.1.1:6443")),
        (
            (
                "192.168.1.1 is a private address: use another host, or have this one added to the operator's setting"
                " allow-endpoints"
            ),
        ),
        INFERENCE,
    ),
    "llm-no-yaml": Situation(
        by_secret(content="{"), ("the kubeconfig is not YAML", "put a whole one there"), INFERENCE
    ),
    "llm-in-cluster": Situation(
        inference({"model": "org/model", "gpu": 1, "providerConfigName": "incluster"}),
        ("llmInferences.onHub",),
        INFERENCE,
        why=("is not granted to", "ask the platform team to grant"),
        reason="NotGranted",
    ),
    "llm-not-granted": Situation(
        inference({"model": "org/model", "gpu": 1, "providerConfigName": "worker-1"}),
        ('providerConfigName "worker-1"', "have the grant added to spec.llmInferences"),
        INFERENCE,
        why=('providerConfigName "worker-1"', "ask the platform team to grant"),
        reason="NotGranted",
    ),
    "llm-too-large": Situation(
        inference({"model": "org/model-900B", "placement": "Fleet", "gpu": 1, "memory": "900Gi"}),
        ("memory is 80Gi, needs >= 900Gi", "modelplane hardware"),
        INFERENCE,
        reason="NoMatchingDevices",
    ),
    # Clusters ---
    "cluster-no-yaml": Situation(registered("{"), ("the kubeconfig is not YAML", "put a whole one there"), CLUSTER),
    "cluster-bad-certificate": Situation(
        registered(kubeconfig(**{"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="})),
        ("a certificate or key is not PEM, or incomplete: write it into the kubeconfig again",),
        CLUSTER,
    ),
    "cluster-plain-http": Situation(
        registered(kubeconfig("http://10.90.0.1:6443")),
        ("server begins with http://, so that its credentials could be read on the way; give it an https:// address",),
        CLUSTER,
    ),
    "cluster-proxy": Situation(
        registered(kubeconfig().replace('"server"', '"proxy-url": "http://10.90.0.1:9", "server"')),
        ("the kubeconfig's proxy-url takes no connection: Connection refused",),
        CLUSTER,
    ),
    "cluster-aks": Situation(
        of_cloud({"source": "AKS", "aks": {"location": "westeurope"}}),
        ("on AKS", "with `source: Existing`"),
        CLUSTER,
    ),
}


def member(**more: Any) -> Manifest:
    """The only member of an engine."""
    return {"nodeSelector": gpus(), "template": pod(), **more}


def engines(*given: Manifest) -> Make:
    return lambda space, name: [deployment(space, name, engines=list(given))]


def specified(kind: Make, **spec: Any) -> Make:
    """The last object with more in its spec."""

    def make(space: str, name: str) -> Sequence[Manifest]:
        *others, last = kind(space, name)
        return [*others, {**last, "spec": {**last["spec"], **spec}}]

    return make


def in_container(**more: Any) -> Make:
    template = pod()
    template["spec"]["containers"][0].update(more)
    return engines(engine(template=template))


REFUSED: Mapping[str, tuple[Make, tuple[str, ...]]] = {
    "split-without-phases": (
        lambda space, name: [deployment(space, name, serving={"mode": "PrefillDecode"})],
        ("needs exactly two engines: one with phase Prefill and one with phase Decode",),
    ),
    "no-engine-container": (in_container(name="vllm"), ("The container must be called engine: write `name: engine`",)),
    "two-engines-of-a-name": (engines(engine(), engine()), ("engines",)),
    "negative-replicas": (asking(replicas=-1), ("spec.replicas", "greater than or equal to 0")),
    "too-many-replicas": (asking(replicas=5000), ("spec.replicas", "less than or equal to 1000")),
    "unknown-field": (specified(asking(), replica=3), (".spec.replica: field not declared in schema",)),
    "failover-in-words": (asking(failover={"after": "five minutes"}), ("failover.after",)),
    "surge-and-unavailable": (
        asking(rollout={"maxSurge": 0, "maxUnavailable": 0}),
        ("With maxSurge 0 and maxUnavailable 0 no replica could ever be changed: raise one of them",),
    ),
    "no-devices": (asking(count=0), ("count", "greater than or equal to 1")),
    "leader-alone": (engines({"name": "vllm", "members": [member(role="Leader")]}), ("Worker",)),
    "both-shapes": (
        lambda space, name: [
            {
                **deployment(space, name),
                "spec": {**deployment(space, name)["spec"], "engines": [engine()]},
            }
        ],
        ("Describe the replica once: under `template`",),
    ),
    "no-weight": (of(service, (-1, {"model": "a"})), ("weight",)),
    "empty-service": (specified(of(service), endpoints=[]), ("spec.endpoints",)),
    "no-source": (specified(of(cache), source="PersistentVolumeClaim"), ("persistentVolumeClaim",)),
    "no-size": (
        cached("HuggingFace", {"repo": "org/model", "sizeGiB": 0}),
        ("sizeGiB", "greater than or equal to 1"),
    ),
    "llm-nowhere": (
        inference({"model": "org/model", "gpu": 1}),
        ("Name the cluster: an InferenceCluster, a Secret with a kubeconfig, or incluster; or set placement: Fleet",),
    ),
    "llm-no-gpus": (inference({"model": "org/model", "gpu": 0, "placement": "Fleet"}), ("spec.gpu",)),
    "endpoint-without-url": (lambda space, name: [{**endpoint(space, name, ""), "spec": {}}], ("spec.url", "Required")),
    "long-name": (
        lambda space, name: [deployment(space, "m" * 200)],
        ("metadata.name",),
    ),
}
"""What the API server refuses at once, and what its message says."""
