"""docs/troubleshooting.md: for each symptom the command, the causes and the cures; for each HTTP status its sender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubeloop.condition_types import ConditionType, Ready, ServerVerified, Synced
from modelplane_operator.api.clusters import provisioning as clouds
from modelplane_operator.api.inference_class import Accepted
from modelplane_operator.api.inference_cluster import (
    BackendReady,
    ClusterReady,
    CredentialsRenewed,
    GatewaySecured,
    GPUReady,
    NodePoolsValid,
    ObjectsOwned,
)
from modelplane_operator.api.inference_gateway import ControllerReady, MutualTLSReady, TLSReady
from modelplane_operator.api.llm_inference import MemoryKnown, OldCopiesRemoved, RuntimeAvailable, TargetResolved
from modelplane_operator.api.llm_inference import ModelReady as LLMReady
from modelplane_operator.api.model_cache import ArtifactReady, ClustersMatched
from modelplane_operator.api.model_deployment import (
    ModelCacheResolved,
    PodTemplateAllowed,
    Progressing,
    ReplicasReady,
    ReplicasScheduled,
)
from modelplane_operator.api.model_endpoint import RoutingReady as EndpointRouting
from modelplane_operator.api.model_replica import CacheTransfer, ModelAccepted, ModelReady, PickerReady
from modelplane_operator.api.model_service import Answering, AuthReady, EndpointsResolved, RoutingReady
from modelplane_operator.api.remedies import REMEDIES, Remedy
from modelplane_operator.api.serving_stack import GatewayCertified, Installed, ServingStackRollout

PAGE = Path("docs/troubleshooting.md")
INTRODUCTION = """\
# Troubleshooting

<!-- Written by `make crds` from scripts/troubleshooting.py and modelplane_operator/api/remedies.py; edit those. -->

[`modelplane why NAME`](cli.md#why-is-it-not-running) prints cause and remedy for a model, a service or an LLMInference.
For any object, `kubectl describe` lists its conditions, with `Ready` last.
If `Ready` has the reason `Creating`, nothing is wrong yet; otherwise it repeats the reason of the failing condition.

Find your symptom, run its command, and look up the condition and reason that it prints.
For a failed request, begin with [its status](#by-status-of-a-request).
"""

BY_STATUS = """\
## By status of a request

A request passes the hub gateway (Traefik or Envoy Gateway), the cluster's gateway (Envoy Gateway) and the engine.
Requests to a provider pass only the first.
`modelplane ask NAME "Hi"` sends one as a client does, and `modelplane logs NAME` shows those that reached the engine.
Gateways answer with one line or an empty body; longer bodies are the engine's or the key service's.
"""

# The status or symptom, its sender, the cause, and what to check.
STATUSES = (
    (
        "400",
        "endpoint picker",
        "body without `model`, or no JSON, on [a path that it parses](models.md#what-a-picker-changes)",
        "the request; `serving.picker: None` disables it",
    ),
    (
        "400, 403, 413, 429",
        "engine or provider; 413 also a proxy before the hub gateway",
        "its own rule: Modelplane bounds neither sizes nor rates",
        "the body",
    ),
    (
        "401",
        "hub gateway, by the key service",
        "no key (`missing_api_key`) or a wrong one (`invalid_api_key`)",
        "`AuthReady` of the ModelService, and [its Secrets](hub-gateway.md#api-keys)",
    ),
    (
        "",
        "engine or provider",
        "its own key (vLLM's `--api-key`, a provider's)",
        "`spec.credentials` of the ModelEndpoint",
    ),
    (
        "404, `404 page not found` or empty",
        "hub gateway",
        (
            "no ModelService has that path; a host name outside [`tls.hostnames`](hub-gateway.md#https); http with "
            "`http: Refused`"
        ),
        "`status.address` of the ModelService",
    ),
    (
        "404, empty",
        "cluster's gateway",
        "not one of [the paths that clients reach](models.md#which-paths-clients-reach)",
        "`modelplane url NAME --routes`, `serving.paths`",
    ),
    ("404, longer", "engine", "no such path or `model`", "`GET /v1/models` below the model's URL"),
    (
        "500",
        "Traefik",
        "the key service does not answer",
        "`AuthReady`; the Deployment `modelplane-keys` in `modelplane-system`",
    ),
    (
        "",
        "cluster's gateway",
        "no endpoint picker answers, or it just ended; in mode Unified for seconds only",
        (
            "`PickerReady` of the ModelReplica; [the picker's "
            "pods](serving-stack.md#when-an-endpoint-picker-does-not-answer)"
        ),
    ),
    ("", "engine", "its own error", "`modelplane logs NAME`"),
    (
        "502 (Envoy Gateway: 503)",
        "hub gateway",
        "the cluster's gateway or the provider refuses or ends the connection",
        "`ClusterReady` and `BackendReady` of the InferenceCluster; [the gateway's pods](serving-stack.md#the-gateway)",
    ),
    (
        "503",
        "hub gateway",
        "no endpoint is ready",
        "`EndpointsResolved` and `RoutingReady` of the ModelService",
    ),
    (
        "",
        "hub gateway, by the key service",
        "its Secrets cannot be read (`keys_unavailable`); with Envoy Gateway also: it is down",
        "`AuthReady` of the ModelService",
    ),
    (
        "",
        "cluster's gateway",
        "no ready pod, or three pods refused the connection",
        "`ModelReady` of the ModelReplica, and its pods",
    ),
    ("", "engine", "a full queue, or it loads", "`modelplane logs NAME`"),
    (
        "504 (Envoy Gateway: 503)",
        "hub gateway",
        "the cluster's gateway or the provider takes no connection in three seconds",
        "`ClusterReady`; firewalls and load balancers between them",
    ),
    (
        "504",
        "load balancer or proxy before the hub gateway",
        "its own timeout",
        "[timeouts](hub-gateway.md#timeouts)",
    ),
    (
        "an answer breaks off",
        "the first hop that noticed",
        (
            "a pod or node of an engine ended ([five minutes](operations.md#how-long-answers-may-take)), a gateway "
            "ended after 15 minutes, or a load balancer closed a silent connection"
        ),
        (
            "`kubectl get events` in the model's namespace on its cluster; [idle "
            "timeouts](hub-gateway.md#idle-timeouts-of-load-balancers)"
        ),
    ),
    (
        "no answer",
        "",
        (
            "an engine that [hangs over prompts](serving-stack.md#an-engine-that-hangs-over-prompts), a node that "
            "just failed, or a load balancer that forgot the connection"
        ),
        "nodes that are not Ready; `vllm:num_requests_running` and `vllm:generation_tokens_total`",
    ),
)


@dataclass(frozen=True, slots=True)
class Symptom:
    """A symptom, the command that shows its cause, and the conditions in which that stands."""

    title: str
    command: str
    conditions: tuple[type[ConditionType], ...] = ()


SYMPTOMS = (
    Symptom("`kubectl apply` refuses an object, or warns", "See [admission.md](admission.md)."),
    Symptom(
        "A model has too few replicas",
        "`modelplane why NAME`, `kubectl describe modeldeployment NAME`",
        (ReplicasScheduled, ModelCacheResolved),
    ),
    Symptom(
        "A replica does not start, or stopped answering",
        "`kubectl describe modelreplica NAME`",
        (ReplicasReady, ModelAccepted, ModelReady),
    ),
    Symptom(
        "A model is slower than its hardware", "`kubectl describe modelreplica NAME`", (CacheTransfer, PickerReady)
    ),
    Symptom("Pods lack fields of their template", "`kubectl describe modeldeployment NAME`", (PodTemplateAllowed,)),
    Symptom("A replica does not leave its cluster", "`modelplane plan --drain CLUSTER`", (Progressing,)),
    Symptom(
        "Requests fail, or a model has no URL",
        "`modelplane why service/NAME`, `kubectl describe modelservice NAME`, `kubectl describe modelendpoint NAME`",
        (EndpointsResolved, RoutingReady, Answering, EndpointRouting),
    ),
    Symptom("API keys are refused, or not required", "`kubectl describe modelservice NAME`", (AuthReady,)),
    Symptom("Weights are not staged", "`kubectl describe modelcache NAME`", (ClustersMatched, ArtifactReady)),
    Symptom(
        "A cluster takes no models",
        "`modelplane fleet`, `kubectl describe inferencecluster NAME`",
        (ClusterReady, BackendReady, NodePoolsValid, Accepted, Installed, ServingStackRollout, GatewayCertified),
    ),
    Symptom("A cluster has too few nodes", "`kubectl describe inferencecluster NAME`", (GPUReady,)),
    Symptom(
        "A cluster works with warnings",
        "`kubectl describe inferencecluster NAME`",
        (CredentialsRenewed, ServerVerified, GatewaySecured, ObjectsOwned),
    ),
    Symptom(
        "A cloud does not create a cluster",
        "`kubectl describe ekscluster NAME`, `kubectl describe gkecluster NAME`",
        (
            clouds.CredentialsValid,
            clouds.QuotaAvailable,
            clouds.CapacityAvailable,
            clouds.NetworkReady,
            clouds.ControlPlaneReady,
            clouds.NodePoolsReady,
            clouds.Stalled,
        ),
    ),
    Symptom(
        "The hub gateway does not answer",
        "`kubectl describe inferencegateway default`",
        (ControllerReady, TLSReady, MutualTLSReady),
    ),
    Symptom(
        "An LLMInference does not run",
        "`kubectl describe llminference NAME`",
        (TargetResolved, RuntimeAvailable, MemoryKnown, LLMReady, OldCopiesRemoved),
    ),
    Symptom(
        "A change has no effect, or an object is not deleted",
        "`kubectl describe` the object: its `Synced` and `Ready`",
        (Synced, Ready),
    ),
    Symptom("The operator does not start", "See [its pods](install.md#when-it-does-not-start)."),
)


def page() -> str:
    symptoms = [line for symptom in SYMPTOMS for line in _symptom(symptom)]
    return "\n".join([INTRODUCTION, *symptoms, BY_STATUS, *_by_status(), ""])


def _symptom(symptom: Symptom) -> Iterator[str]:
    """The section of a symptom: its command, and what to do about each reason; equal remedies of a reason are one row.

    Reasons that pass, and those that another condition explains, need no cause and stand in a line below the table.
    """
    yield from (f"## {symptom.title}", "", symptom.command, "")
    alike = dict[tuple[str, Remedy], list[ConditionType]]()
    for one in (one for of in symptom.conditions for one in of if one in REMEDIES):
        alike.setdefault((one.reason, REMEDIES[one]), []).append(one)
    rows, passing, explained = list[str](), list[str](), list[str]()
    for (reason, (do, more)), found in alike.items():
        name = f"{', '.join(one.type for one in found)} `{reason}`"
        if do.startswith("Wait: the operator continues"):
            passing.append(name)
        elif do.startswith("See the condition"):
            explained.append(f"For {name}, s{do[1:]}")
        else:
            rows.append(f"| {name} | {found[0].meaning} | {f'{do} [More]({more})' if more else do} |")
    if rows:
        yield from ("| Reason | Cause | What to do |", "|---|---|---|", *rows, "")
    if passing:
        explained.insert(0, f"These pass by themselves: {', '.join(passing)}.")
    if explained:
        yield from (" ".join(explained), "")


def _by_status() -> Iterator[str]:
    yield from ("| Status | Sender | Cause | What to check |", "|---|---|---|---|")
    yield from (f"| {' | '.join(cells)} |" for cells in STATUSES)
