"""Hostile objects: what a tenant, or an admin in a hurry, can have an API server store.

Each stands for an attack or a mistake that once held up others, or might. Append yours: `test_hostile.py` applies it
beside an ordinary deployment, which must be served meanwhile by an operator that stays up and keeps its lease. An API
server may refuse it; what it stores has to be looked at, and has to say in its own conditions what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.integration.harness import SYSTEM
from tests.integration.kinds import cache, cluster, deployment, endpoint, engine, pod, secret, service
from tests.integration.watcher import CANARY
from tests.support.manifests import Manifest

SPACE = "hostile"


_KUBECONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://nobody.example:6443"}}]
users: [{name: a, user: {token: hush}}]
"""
_BOMB = (
    "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)) + _KUBECONFIG
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """Objects that belong together, in the order in which they are applied. Their names are nobody else's."""

    title: str
    manifests: tuple[Manifest, ...]
    tells: str = ""
    """What the conditions of the last of them say, as a regular expression over `TYPE=STATUS REASON MESSAGE; ...`."""


ELSEWHERE = (f"../../{CANARY}/secrets/{CANARY}", f"..%2F..%2F{CANARY}%2Fsecrets%2F{CANARY}", "..", "")


def curious(source: str, name: str) -> Manifest:
    """A pod with a variable from elsewhere. What is read under one name is copied under another, so it has both."""
    template, here = pod(), CANARY
    led = name.replace("secrets", "configmaps") if source == "configMapKeyRef" else name
    template["spec"]["containers"][0]["env"] = [
        {"name": f"V{number}", "valueFrom": {source: {"name": one, "key": "text", "optional": True}}}
        for number, one in enumerate((led, here))
    ]
    return template


def pulling(name: str) -> Manifest:
    template = pod()
    template["spec"]["imagePullSecrets"] = [{"name": name}, {"name": CANARY}]
    return template


def borrowed_cluster(name: str) -> Manifest:
    manifest = cluster("borrowed")
    manifest["spec"]["cluster"]["existing"]["secretRef"] = {"name": name, "key": "text"}
    return manifest


def reaching(name: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "inference.devopstoolkit.ai/v1alpha1",
        "kind": "LLMInference",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"model": "org/model", **spec},
    }


def guarded(name: str, keys: str) -> Manifest:
    made = service(SPACE, name)
    return {**made, "spec": {**made["spec"], "auth": {"apiKeys": {"secretRefs": [{"name": keys}]}}}}


def gated(name: str, token: str) -> Manifest:
    made = cache(SPACE, name)
    made["spec"]["huggingFace"]["authSecret"] = {"name": token, "key": "text"}
    return made


def verbose(count: int, length: int) -> Manifest:
    template = pod()
    template["spec"]["containers"][0]["args"] = ["-" * length] * count
    return template


def _cluster(name: str, kubeconfig: str) -> Manifest:
    origin = {"source": "Existing", "existing": {"secretRef": {"name": kubeconfig}}}
    made = cluster(name, {"h100": "h100"})
    return {**made, "spec": {**made["spec"], "cluster": origin}}


def _stack(name: str, depth: int) -> Manifest:
    """A ServingStack; without Helm nobody reconciles it, and it is watched all the same."""
    values: Any = 1
    for _ in range(depth):
        values = {"a": values}
    chart = {"name": "deep", "namespace": "deep", "repository": "https://charts.example", "chart": "x", "version": "1"}
    return {
        "apiVersion": "infrastructure.modelplane.ai/v1alpha1",
        "kind": "ServingStack",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "secrets": [{"type": "Kubeconfig", "name": "nobody", "key": "kubeconfig"}],
            "extraCharts": [{**chart, "values": values}],
        },
    }


KUBECONFIGS = (
    ("with a typing error in its server", _KUBECONFIG.replace("https://", "https://["), "server is not a URL"),
    ("with a book for its server", _KUBECONFIG.replace(":6443", ":6443/" + "a" * 2**19), "server has more than 2,048"),
    ("that is an alias bomb", _BOMB, "YAML aliases"),
    ("that is a nest of lists", "[" * 100_000, "nested more than 20 levels"),
    ("with a date that is none", _KUBECONFIG.replace("hush", "2026-13-45"), "token is not a string"),
)
"""Each with what the condition of a cluster that names it says."""

HOSTILE: list[Hostile] = [
    Hostile(
        "a selector that nobody can read",
        (deployment(SPACE, "unreadable", engines=[engine("device.driver ==")]),),
        "ReplicasScheduled=False InvalidNodeSelector",
    ),
    Hostile(
        "annotations of 200 KB",
        (
            {
                **(plain := deployment(SPACE, "annotated", replicas=0)),
                "metadata": {**plain["metadata"], "annotations": {f"n{n}": "x" * 2000 for n in range(100)}},
            },
        ),
        "Synced=True",
    ),
    *(
        Hostile(
            f"a kubeconfig {title}",
            (
                secret(SYSTEM, f"kubeconfig-{number}", kubeconfig=text),
                _cluster(f"hostile-{number}", f"kubeconfig-{number}"),
            ),
            f"ClusterReady=False .*{tells}",
        )
        for number, (title, text, tells) in enumerate(KUBECONFIGS)
    ),
    Hostile("values nested 300 deep", (_stack("nested", 300),)),
    Hostile(
        "a service over a thousand entries",
        (service(SPACE, "entries", *((1, {f"label-{n}": "x"}) for n in range(1000))),),
        "EndpointsResolved=False NoEndpoints",
    ),
    # Names that lead into another namespace. The watcher's rule I12 tells whether they were followed.
    *(
        Hostile(
            f"an endpoint whose key is {way!r}",
            (
                endpoint(
                    SPACE,
                    f"borrowed-key-{number}",
                    "https://inference.example.com",
                    credentials={"secretRef": {"name": way, "key": "text"}},
                ),
                service(SPACE, f"borrowed-key-{number}"),
            ),
        )
        for number, way in enumerate(ELSEWHERE)
    ),
    *(
        Hostile(
            f"an engine whose {source} is {way!r}",
            (
                deployment(
                    SPACE, f"borrowed-{source.lower()}-{number}", engines=[engine(template=curious(source, way))]
                ),
            ),
        )
        for source in ("secretKeyRef", "configMapKeyRef")
        for number, way in enumerate(ELSEWHERE)
    ),
    Hostile(
        "images that are pulled with another namespace's Secret",
        (deployment(SPACE, "borrowed-registry", engines=[engine(template=pulling(ELSEWHERE[0]))]),),
    ),
    Hostile(
        "a cluster whose kubeconfig is another namespace's",
        (borrowed_cluster(ELSEWHERE[0]),),
    ),
    Hostile("a cache whose token is another namespace's", (gated("borrowed-token", ELSEWHERE[0]),)),
    # Ways to what is inside, or another tenant's.
    Hostile(
        "an endpoint that leads to a metadata service",
        (endpoint(SPACE, "metadata", "http://169.254.169.254/latest"), service(SPACE, "metadata")),
        "EndpointsResolved=True .* with a URL that cannot be used",
    ),
    Hostile(
        "a kubeconfig of a tenant that leads to a metadata service",
        (
            secret(SPACE, "inward", kubeconfig=_KUBECONFIG.replace("nobody.example:6443", "169.254.169.254")),
            reaching("inward", providerConfigName="inward"),
        ),
        "TargetResolved=False InvalidKubeconfig",
    ),
    Hostile(
        "a model on a cluster that lets nobody in",
        (reaching("uninvited", providerConfigName="worker-1", targetNamespace="kube-system"),),
        "TargetResolved=False NotGranted",
    ),
    # Much of everything: what is still stored must be cheap, the rest is refused.
    Hostile(
        "a megabyte of selectors",
        (deployment(SPACE, "selecting", engines=[engine(f"{'true && ' * 1200}true", name=f"e{n}") for n in range(8)]),),
    ),
    Hostile(
        "a megabyte of arguments for a thousand replicas",
        (deployment(SPACE, "arguing", replicas=1000, engines=[engine(template=verbose(100, 10_000))]),),
    ),
    Hostile(
        "API keys of ten thousand clients",
        (secret(SPACE, "crowd", **{f"k{number}": "x" for number in range(10_000)}), guarded("crowd", "crowd")),
        "AuthReady=False SecretTooLarge",
    ),
    Hostile(
        "arguments up to the bound",
        (deployment(SPACE, "talking", replicas=0, engines=[engine(template=verbose(500, 500))]),),
        "Synced=True",
    ),
]
