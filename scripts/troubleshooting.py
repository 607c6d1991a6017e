"""docs/troubleshooting.md: by symptom, what to look at first; by reason, what it means and what to do."""

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
One of the reasons in the third stands there, and [the next table](#by-reason) says what to do.
"""


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
    return "\n".join([INTRODUCTION, *_by_symptom(), "", "## By reason", "", *_by_reason(), ""])


def _by_symptom() -> Iterator[str]:
    yield from ("| What you see | What to look at | What it says |", "|---|---|---|")
    for symptom in SYMPTOMS:
        told = dict.fromkeys(f"`{one.reason}`" for of in symptom.told for one in of if one in REMEDIES)
        yield f"| {symptom.seen} | {symptom.look} | {', '.join(told)} |"


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
