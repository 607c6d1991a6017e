"""docs/troubleshooting.md: by symptom, what to look at; by status, who answers so; by reason, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from modelplane_operator.api import KINDS
from modelplane_operator.api.clusters import provisioning as clouds
from modelplane_operator.api.conditions import ConditionType, Ready, ServerVerified, Synced
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
from modelplane_operator.api.remedies import REMEDIES
from modelplane_operator.api.serving_stack import Installed

PAGE = Path("docs/troubleshooting.md")
INTRODUCTION = """\
# Troubleshooting

<!-- Written by `make crds` from scripts/troubleshooting.py and modelplane_operator/api/remedies.py; edit those. -->

Every object says in its conditions how it is, and `Ready` is the last of them in `kubectl describe`.
While all that is missing is on its way, its reason is `Creating`.
While something is wrong that does not mend by itself, its reason is that of the condition which says what.
For models [`modelplane why NAME`](cli.md) says the cause and the remedy by itself.

## By symptom

Look at what the second column names.
One of the reasons in the third stands there, and [the last table](#by-reason) says what to do.
"""


BY_STATUS = """\
## By status of a request

A request passes the hub gateway (Traefik or Envoy Gateway), the gateway of a cluster (Envoy Gateway), and the engine.
Requests to a provider pass the hub gateway alone.
`modelplane ask NAME "Hi"` asks as a client does, and `modelplane logs NAME` shows what has reached the engine.
A gateway's own answer has one line of text, or nothing; anything longer is the engine's or the key service's.
"""

# What the client gets, who answers so, why, and what to look at.
STATUSES = (
    (
        "400",
        "the endpoint picker",
        ("a body without `model`, or that is no JSON, on [a path that it parses](models.md#what-a-picker-changes)"),
        "the request; `serving.picker: None` goes without",
    ),
    ("", "the engine", "what it says itself", "the body of the answer"),
    (
        "401",
        "the hub gateway, by the key service",
        "no key (`missing_api_key` in the body) or a wrong one (`invalid_api_key`)",
        "`AuthReady` of the ModelService, and [its Secrets](hub-gateway.md#api-keys)",
    ),
    (
        "",
        "the engine or the provider",
        "a key of its own (vLLM's `--api-key`, a provider's credentials)",
        "`spec.credentials` of the ModelEndpoint",
    ),
    ("403", "the engine or the provider; nothing of ours does", "what it says itself", "the body of the answer"),
    (
        "404, with `404 page not found` or an empty body",
        "the hub gateway",
        (
            "no ModelService has that path; another host name than [`tls.hostnames`](hub-gateway.md#https); http "
            "where `http: Refused`"
        ),
        "`status.address` of the ModelService",
    ),
    (
        "404, with an empty body",
        "the cluster's gateway",
        "the path is none of [those that clients reach](models.md#which-paths-clients-reach)",
        "`modelplane url NAME --routes`, and `serving.paths`",
    ),
    (
        "404, with a body of the engine's",
        "the engine",
        "no such path there, or no such `model`",
        "`GET /v1/models` below the model's URL",
    ),
    (
        "413",
        "the engine or the provider, or a proxy before the hub gateway; nothing of ours bounds a body",
        "it is too large for that",
        "the body of the answer",
    ),
    (
        "429",
        "the engine or the provider; nothing of ours limits rates",
        "it says when to try again",
        "the body of the answer",
    ),
    (
        "500",
        "Traefik",
        "no answer of the key service",
        "`AuthReady`, and the Deployment `modelplane-keys` in `modelplane-system`",
    ),
    (
        "",
        "the cluster's gateway",
        (
            "no endpoint picker answers, or the one that was asked has ended; in mode Unified for seconds, until "
            "the route leads past it"
        ),
        (
            "`PickerReady` of the ModelReplica, and [the picker's "
            "pods](serving-stack.md#when-an-endpoint-picker-does-not-answer)"
        ),
    ),
    ("", "the engine", "an error of its own", "`modelplane logs NAME`"),
    (
        "502",
        "Traefik; Envoy Gateway says 503",
        "the cluster's gateway, or the provider, refuses or ends the connection",
        (
            "`ClusterReady` and `BackendReady` of the InferenceCluster; [pods of the "
            "gateway](serving-stack.md#the-gateway)"
        ),
    ),
    (
        "503",
        "the hub gateway",
        "no endpoint of the ModelService is ready",
        "`EndpointsResolved` and `RoutingReady` of the ModelService",
    ),
    (
        "",
        "the hub gateway, by the key service",
        (
            "the Secrets cannot be read now (`keys_unavailable` in the body; with Envoy Gateway also where the "
            "key service is away)"
        ),
        "`AuthReady` of the ModelService",
    ),
    (
        "",
        "the cluster's gateway",
        "no pod of the replica is ready, or two more pods took no connection either",
        "`ModelReady` of the ModelReplica, and its pods",
    ),
    ("", "the engine", "a full queue, or it is loading", "`modelplane logs NAME`"),
    (
        "504",
        "Traefik; Envoy Gateway says 503",
        "the cluster's gateway, or the provider, takes no connection within three seconds",
        "`ClusterReady`; a firewall or a load balancer between them",
    ),
    (
        "",
        "a load balancer or a proxy before the hub gateway",
        "its own timeout: gateways have none for an answer",
        "[how long each hop waits](hub-gateway.md#idle-timeouts-of-load-balancers)",
    ),
    (
        "an answer that breaks off",
        "whoever is first on the way back from the engine",
        (
            "its pod or node ended before the answer did ([five "
            "minutes](operations.md#how-long-answers-may-take)), an Envoy or Traefik after a quarter of an hour "
            "of draining, or a load balancer that takes a silent connection for idle"
        ),
        (
            "`kubectl get events` in the namespace of the model on its cluster; [the table of "
            "clouds](hub-gateway.md#idle-timeouts-of-load-balancers)"
        ),
    ),
    (
        "nothing, without end",
        "nobody",
        (
            "an engine that [hangs over prompts](serving-stack.md#an-engine-that-hangs-over-prompts); a node that"
            " has just fallen silent, of an engine or of a picker; a load balancer that has forgotten the "
            "connection"
        ),
        ("nodes of the cluster that are not Ready; `vllm:num_requests_running` beside `vllm:generation_tokens_total`"),
    ),
)


@dataclass(frozen=True, slots=True)
class Symptom:
    """What somebody sees, where to look, and the conditions of which one tells the cause."""

    seen: str
    look: str
    told: tuple[type[ConditionType], ...] = ()


SYMPTOMS = (
    Symptom("`kubectl apply` refuses an object, or warns", "[what it says](admission.md)"),
    Symptom(
        "a model has too few replicas",
        "`modelplane why NAME`, `kubectl describe modeldeployment NAME`",
        (ReplicasScheduled, ModelCacheResolved),
    ),
    Symptom(
        "a replica has a cluster and does not start, or answers no more",
        "`kubectl describe modelreplica NAME`",
        (ReplicasReady, ModelAccepted, ModelReady),
    ),
    Symptom(
        "a model is slower than its hardware", "`kubectl describe modelreplica NAME`", (CacheTransfer, PickerReady)
    ),
    Symptom("pods lack what their template asks for", "`kubectl describe modeldeployment NAME`", (PodTemplateAllowed,)),
    Symptom("a replica does not leave its cluster", "`modelplane plan --drain CLUSTER`", (Progressing,)),
    Symptom(
        "requests fail, or a model has no URL",
        "`modelplane why NAME`, `kubectl describe modelservice NAME`, `kubectl describe modelendpoint NAME`",
        (EndpointsResolved, RoutingReady, Answering, EndpointRouting),
    ),
    Symptom("API keys are refused, or none is asked for", "`kubectl describe modelservice NAME`", (AuthReady,)),
    Symptom("weights are not staged", "`kubectl describe modelcache NAME`", (ClustersMatched, ArtifactReady)),
    Symptom(
        "a cluster takes no models",
        "`modelplane fleet`, `kubectl describe inferencecluster NAME`",
        (ClusterReady, BackendReady, NodePoolsValid, Accepted, Installed),
    ),
    Symptom("a cluster has fewer nodes than it should", "`kubectl describe inferencecluster NAME`", (GPUReady,)),
    Symptom(
        "a cluster works, and says that something is not as it should be",
        "`kubectl describe inferencecluster NAME`",
        (CredentialsRenewed, ServerVerified, GatewaySecured, ObjectsOwned),
    ),
    Symptom(
        "a cloud does not make a cluster",
        "`kubectl describe` of its EKSCluster",
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
        "the hub gateway does not answer",
        "`kubectl describe inferencegateway default`",
        (ControllerReady, TLSReady, MutualTLSReady),
    ),
    Symptom(
        "an LLMInference does not run",
        "`kubectl describe llminference NAME`",
        (TargetResolved, RuntimeAvailable, MemoryKnown, LLMReady, OldCopiesRemoved),
    ),
    Symptom("a change of an object does nothing, or it is not deleted", "`Synced` and `Ready` of it", (Synced, Ready)),
    Symptom("the operator does not start", "[its pods](install.md#when-it-does-not-start)"),
)


def page() -> str:
    return "\n".join(
        [INTRODUCTION, *_by_symptom(), "", BY_STATUS, *_by_status(), "", "## By reason", "", *_by_reason(), ""]
    )


def _by_symptom() -> Iterator[str]:
    yield from ("| What you see | What to look at | What it says |", "|---|---|---|")
    for symptom in SYMPTOMS:
        told = dict.fromkeys(f"`{one.reason}`" for of in symptom.told for one in of if one in REMEDIES)
        yield f"| {symptom.seen} | {symptom.look} | {', '.join(told)} |"


def _by_status() -> Iterator[str]:
    yield from ("| What the client gets | Who answers so | Why | What to look at |", "|---|---|---|---|")
    yield from (f"| {' | '.join(cells)} |" for cells in STATUSES)


def _by_reason() -> Iterator[str]:
    yield from ("| Reason | Condition | Of | What it means | What to do |", "|---|---|---|---|---|")
    reasons = {one for kind in KINDS for of in kind.definition.conditions for one in of if one in REMEDIES}
    for one in sorted(reasons, key=lambda one: (one.reason, one.type, _kinds(one))):
        remedy = REMEDIES[one]
        do = f"{remedy.do} [More]({remedy.page})" if remedy.page else remedy.do
        yield f"| `{one.reason}` | {one.type} | {_named(_kinds(one))} | {one.meaning} | {do} |"


def _kinds(reason: ConditionType) -> tuple[str, ...]:
    return tuple(kind.definition.kind for kind in KINDS if type(reason) in kind.definition.conditions)


def _named(kinds: Iterable[str]) -> str:
    found = tuple(kinds)
    return ", ".join(found) if len(found) < len(KINDS) // 2 else "all kinds"
