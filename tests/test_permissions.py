"""The operator with the permissions that docs/permissions.md lists: it is refused nothing, and needs what it has.

What it asks for is read in the audit logs of the API servers, where a request stands as RBAC judges it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from localfleet.fleet import Fleet, FleetError
from modelplane_operator.api import names
from tests.integration import kinds
from tests.support.hub import SYSTEM, Hub
from tests.support.manifests import ROOT
from tests.support.permissions import (
    ACCESS,
    CLOUDS,
    HUB_PERMISSIONS,
    LLM_PERMISSIONS,
    OF_STACKS,
    ON_CLUSTERS,
    ON_HUB,
    OURS,
    PERMISSIONS,
    QUICK,
    TEAM,
    Permission,
    accounts,
    as_operator,
    asked,
    audited,  # noqa: F401 - fixture
    bring,
    every,
    idle,
    refused,
    webhook,
)
from tests.support.processes import REAL, operating
from tests.support.vllm import DEFINITION

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

OPTIONS: Manifest = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "options", "namespace": TEAM},
    "data": {"level": "1"},
}
MODELS = "inference-large"  # as in examples/access/llminferences.yaml
PLACES = {"incluster": "hub", "worker-1": "worker-1"}
OF_CLOUDS = ("aksclusters", "eksclusters", "gkeclusters", "nebiusclusters", "vultrclusters")
INFERENCE = "inference.devopstoolkit.ai"
# What the scenario may leave unused, and why the operator may do it all the same.
IDLE_ON_HUB: Mapping[str, Iterable[str]] = {
    "whoever may list them may read one; it is asked for when a first write finds that there is one already": [
        *every("get", OURS, "inferencegateways", "inferenceclasses", "inferenceclusters"),
        *every("get", OURS, "modeldeployments", "modelreplicas", "modelendpoints", "modelservices", "modelcaches"),
        *every("get", CLOUDS, "servingstacks"),
        *every("get", INFERENCE, "llminferences"),
        *every("get", "gateway.networking.k8s.io", "gatewayclasses", "gateways", "httproutes", "backendtlspolicies"),
        *every("get", "discovery.k8s.io", "endpointslices"),
        *every("get", "", "services"),
    ],
    "the garbage collector takes them with their owner; they go sooner only when something else is asked for": [
        *every("delete", "gateway.networking.k8s.io", "gatewayclasses", "gateways", "httproutes"),
        *every("delete", "", "services"),
    ],
    "they go when an authority has signed nothing for a month: tests/integration/test_mutual_tls.py": [
        f"delete secrets in {SYSTEM}"
    ],
    "authorities of an older version are freed of their owner: tests/routing/gateway/test_inference_gateway.py": [
        f"update secrets in {SYSTEM}"
    ],
    "the same of what leads to clusters, in one namespace": [
        f"{verb} {resource}.traefik.io in {SYSTEM}"
        for verb in ("get", "delete")
        for resource in ("ingressroutes", "serverstransports")
    ],
    "what comes again is counted, which nothing did within a minute: tests/kubeloop/test_events.py": every(
        "update", "", "events"
    ),
    "an LLMInference that leaves the fleet: tests/models/llm_inference/test_controller.py": [
        *every("delete", OURS, "modeldeployments", "modelservices"),
    ],
    "stacks are there only with a Helm: tests/clusters/cluster/test_joining.py": OF_STACKS,
    "a hub gateway is held only with a Helm: tests/routing/gateway/test_hub_gateway.py": every(
        "patch", OURS, "inferencegateways"
    ),
    "another backend than here: tests/routing/test_routing.py": every(
        "get list watch create patch delete",
        "gateway.envoyproxy.io",
        *(
            "envoyproxies",
            "backends",
            "httproutefilters",
            "securitypolicies",
            "clienttrafficpolicies",
            "backendtrafficpolicies",
        ),
    ),
    "no service here asks for API keys: tests/routing/test_routing.py": every(
        "get create patch delete", "traefik.io", "middlewares"
    ),
    "nobody here asks a Question: tests/ask/test_admission.py": ["create subjectaccessreviews.authorization.k8s.io"],
    "for the controllers of clouds, which are still to come": [
        *every("get create patch delete", CLOUDS, *OF_CLOUDS),
        *every("update", CLOUDS, *(f"{resource}/status" for resource in OF_CLOUDS)),
    ],
}
IDLE: Mapping[str, Iterable[str]] = {
    "whoever may list them may read one; it is asked for when a first write finds that there is one already": [
        *every("get", "", "configmaps", "limitranges", "secrets", "serviceaccounts", "services"),
        *every("get", "", "persistentvolumeclaims"),
        *every("get", "apps", "deployments"),
        *every("get", "batch", "jobs"),
        *every("get", "gateway.envoyproxy.io", "envoyproxies", "clienttrafficpolicies", "backendtrafficpolicies"),
        *every("get", "gateway.envoyproxy.io", "httproutefilters", "envoyextensionpolicies"),
        *every("get", "networking.k8s.io", "networkpolicies"),
        *every("get", "gateway.networking.k8s.io", "gatewayclasses", "gateways", "httproutes"),
        *every("get", "leaderworkerset.x-k8s.io", "leaderworkersets"),
        *every("get", "rbac.authorization.k8s.io", "roles", "rolebindings"),
        *every("get", "resource.k8s.io", "resourceclaimtemplates"),
        *every("get", "policy", "poddisruptionbudgets"),
    ],
    "no Prometheus Operator here: tests/rendering/golden/model_replica": [
        *every("get list watch create patch delete", "monitoring.coreos.com", "podmonitors"),
    ],
    "they go with their namespace, or when a cluster is to have none: tests/integration/test_fences.py": [
        *every("delete", "", "limitranges"),
        *every("delete", "networking.k8s.io", "networkpolicies"),
    ],
    "a picker is given it, and nobody can give what he does not have": [
        *every("get", "", "pods"),
    ],
    "what fills a volume is given it, in the same way": [
        *every("patch", "batch", "jobs/status"),
    ],
    "a token lasts longer than the test: tests/clusters/cluster/test_clusters.py": [
        f"create serviceaccounts/token in {ACCESS}",
    ],
}


def test_the_operator_is_refused_nothing_and_needs_what_it_has(audited: Fleet, tmp_path: Path) -> None:  # noqa: F811
    hub = Hub(audited)
    hub.learn()
    for namespace in (SYSTEM, TEAM, MODELS):
        hub.kubectl("create", "namespace", namespace)
    hub.kubectl("create", "namespace", MODELS, on="worker-1")
    hub.kubectl(
        "apply", "-f-", documents=accounts("hubGateway.traefik=false", f"llmInferences.onHub.{TEAM}={{{MODELS}}}")
    )
    bring(hub, "worker-1", "own-software.yaml", named="worker-1-kubeconfig")
    hub.kubectl("apply", "-f", str(ROOT / "examples/access/llminferences.yaml"), on="worker-1")
    for on in ("hub", "worker-1"):
        hub.kubectl("apply", "-f-", documents=DEFINITION, on=on)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(as_operator(hub))
    hub.apply(webhook())

    on_the_hub = (f"--llm-inferences-on-hub={TEAM}={MODELS}", f"--llm-inference-hosts-on-hub={TEAM}=*")
    with operating(kubeconfig, tmp_path, *QUICK, *on_the_hub, module=REAL) as operator:
        is_kept_in(hub)
        comes(hub)
        changes(hub)
        picks(hub)
        is_one_model(hub)
        are_where_they_are_let_in(hub)
        goes(hub)
        log = operator.running.command.log.read_text()

    on_hub, on_cluster = audited.audit("hub"), audited.audit("worker-1")
    assert (refused(on_hub, ON_HUB), refused(on_cluster, ON_CLUSTERS), "orbidden" in log) == ([], [], False)
    assert idle(on_hub, ON_HUB, HUB_PERMISSIONS | LLM_PERMISSIONS, IDLE_ON_HUB) == []
    assert idle(on_cluster, ON_CLUSTERS, PERMISSIONS | LLM_PERMISSIONS, IDLE) == []


def is_kept_in(hub: Hub) -> None:
    """Whoever has stolen the cluster's token makes no token that never ends, and nothing where models are not."""
    account = {"kubernetes.io/service-account.name": "modelplane-operator"}
    eternal = kinds.secret("modelplane-stolen", "mine")
    eternal |= {
        "type": "kubernetes.io/service-account-token",
        "metadata": eternal["metadata"] | {"annotations": account},
    }
    hub.kubectl("create", "namespace", "modelplane-stolen", on="worker-1")
    for manifest in (eternal, kinds.secret("kube-system", "mine"), kinds.secret(ACCESS, "mine")):
        hub.until(lambda it=manifest: "modelplane-access' with binding" in refusal(hub, it), "the policy to refuse it")
    assert refusal(hub, kinds.secret("modelplane-stolen", "mine")) == "", "the operator copies Secrets there"


def refusal(hub: Hub, manifest: Manifest) -> str:
    """What the cluster says to the operator's account that makes something; nothing is stored."""
    try:
        hub.kubectl("create", "-f-", "--dry-run=server", f"--as={ON_CLUSTERS}", on="worker-1", documents=manifest)
    except FleetError as error:
        return str(error)
    return ""


def is_one_model(hub: Hub) -> None:
    """An LLMInference for the fleet, which has no GPU that is large enough."""
    hub.apply(
        {
            "apiVersion": f"{INFERENCE}/v1alpha1",
            "kind": "LLMInference",
            "metadata": {"name": "large", "namespace": TEAM},
            "spec": {"model": "a/b", "placement": "Fleet", "memory": "9999Gi"},
        }
    )
    told = ("get", "llmi", "large", "-n", TEAM, "-ojsonpath={.status.conditions[?(@.type=='ModelReady')].reason}")
    hub.until(lambda: hub.kubectl(*told) == "NotReady", "its deployment and its service to be there")
    hub.kubectl("delete", "llmi", "large", "-n", TEAM)
    left = ("get", "md,ms", "-n", TEAM, "-oname", "--field-selector=metadata.name=large")
    hub.until(lambda: hub.kubectl(*left) == "", "them to go with it")


def are_where_they_are_let_in(hub: Hub) -> None:
    """LLMInferences of both runtimes in a namespace of the hub and in one of the cluster, and nothing else there."""
    grant = {"namespace": TEAM, "targetNamespaces": [MODELS], "ingressHosts": ["*.example.com"]}
    change(hub, "ic/worker-1", {"llmInferences": [grant]})
    named = {
        f"{where}-{runtime.lower()}": (where, runtime) for where in PLACES for runtime in ("VLLMRuntime", "Deployment")
    }
    for name, (where, runtime) in named.items():
        hub.apply(
            {
                "apiVersion": f"{INFERENCE}/v1alpha1",
                "kind": "LLMInference",
                "metadata": {"name": name, "namespace": TEAM},
                "spec": {
                    "model": "a/b",
                    "runtime": runtime,
                    "ingressHost": f"{name}.example.com",
                    "providerConfigName": where,
                    "targetNamespace": MODELS,
                },
            }
        )
    for name, (where, runtime) in named.items():
        there = ("get", f"{runtime.lower()}s,ingresses", name, "-n", MODELS, "-oname", "--ignore-not-found")
        hub.until(
            lambda args=there, on=PLACES[where]: len(hub.kubectl(*args, on=on).split()) == 2, f"{name} to be there"
        )
    stolen = kinds.secret(MODELS, "mine")
    hub.until(lambda: "modelplane-access' with binding" in refusal(hub, stolen), "the policy to refuse it")
    hub.kubectl("delete", "llmi", "--all", "-n", TEAM, "--timeout=120s")
    for on in PLACES.values():
        assert hub.kubectl("get", "vllmruntimes,deployments,services,ingresses", "-n", MODELS, "-oname", on=on) == ""


def comes(hub: Hub) -> None:
    """A platform, and models that need everything that the operator can make of one."""
    gateway = kinds.gateway()
    secured = {**gateway, "spec": {**gateway["spec"], "mutualTLS": "Always"}}
    for manifest in (secured, *map(kinds.inference_class, kinds.POOLS), with_storage()):
        hub.apply(manifest)
    hub.says("worker-1", "Ready", "Available")
    hub.says("worker-1", "GatewaySecured", "MutualTLS")
    hub.apply(kinds.secret(TEAM, "token", value="hf_123"))
    hub.apply(OPTIONS)
    elsewhere = kinds.endpoint(
        TEAM, "elsewhere", "https://inference.example.com", credentials={"secretRef": {"name": "token", "key": "value"}}
    )
    for manifest in (
        kinds.deployment(TEAM, "one", engines=[kinds.engine(kinds.ADA, template=curious())]),
        kinds.deployment(TEAM, "several", engines=[several()]),
        kinds.service(TEAM, "one"),
        elsewhere,
        kinds.service(TEAM, "elsewhere"),
        kinds.cache(TEAM, "weights"),
    ):
        hub.apply(manifest)
    waits(hub, "Ready", "md/one", "md/several", "ms/one", "mc/weights")
    waits(hub, "RoutingReady", "me/elsewhere", "ms/elsewhere")  # nobody answers there


def with_storage() -> Manifest:
    """The cluster, with storage for caches."""
    cluster = kinds.cluster("worker-1")
    cluster["spec"]["cluster"]["existing"]["cache"] = {"storageClassName": "standard"}
    return cluster


def picks(hub: Hub) -> None:
    """Have a model with something to pick from, whose picker is no longer wanted in the end."""
    policies = "envoyextensionpolicies.gateway.envoyproxy.io"
    hub.apply(kinds.deployment(TEAM, "picked", engines=[kinds.engine(kinds.ADA, ranks=2)]))
    wait_for(hub, Permission("create", policies, names.remote_namespace(TEAM)))
    change(hub, "md/picked", {"template": {"spec": {"serving": {"picker": "None"}}}})
    wait_for(hub, Permission("delete", policies, names.remote_namespace(TEAM)))


def wait_for(hub: Hub, permission: Permission) -> None:
    """Wait until the operator has used a permission on the cluster."""
    hub.until(lambda: (permission, True) in used(hub), f"the operator to {permission}")


def used(hub: Hub) -> set[tuple[Permission, bool]]:
    return {(permission, 200 <= code < 300) for permission, code in asked(hub.fleet.audit("worker-1"), ON_CLUSTERS)}


def curious() -> Manifest:
    """A pod that names what is on the hub."""
    template = kinds.pod()
    template["spec"]["containers"][0]["env"] = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "options", "key": "level"}}},
    ]
    return template


def several() -> Manifest:
    """An engine over two nodes."""
    member = {"nodeSelector": kinds.gpus(kinds.HOPPER, 8), "template": kinds.pod()}
    return {
        "name": "vllm",
        "members": [{**member, "role": "Leader"}, {**member, "role": "Worker", "worker": {"nodes": 1}}],
    }


def waits(hub: Hub, condition: str, *objects: str) -> None:
    hub.kubectl("wait", "-n", TEAM, f"--for=condition={condition}", "--timeout=120s", *objects)


def changes(hub: Hub) -> None:
    change(hub, "md/one", {"template": {"metadata": {"labels": {"model": "one", "tier": "gold"}}}})
    change(hub, "md/several", {"replicas": 0})
    change(hub, "me/elsewhere", {"url": "http://192.0.2.7", "credentials": None})
    hub.until(lambda: "one" in hub.kubectl("get", "me", "-n", TEAM, "-ltier=gold", "-oname"), "the endpoint to follow")
    hub.until(lambda: "several" not in hub.kubectl("get", "mr", "-n", TEAM, "-oname"), "the replica to go")
    hub.until(lambda: hub.kubectl("get", "backendtlspolicies", "-n", TEAM, "-oname") == "", "trust to be unnecessary")


def change(hub: Hub, what: str, spec: Manifest) -> None:
    hub.kubectl("patch", what, "-n", TEAM, "--type=merge", "-p", json.dumps({"spec": spec}))


def goes(hub: Hub) -> None:
    hub.kubectl("delete", "ms,md,me,mc", "--all", "-n", TEAM, "--timeout=120s")
    hub.kubectl("delete", "ic,icl,ig", "--all", "--timeout=120s")
