"""What to do about each reason that a condition can have: for the pages of the reference, and for people who ask why.

A reason is here when it tells of trouble, or of a step that may last. Reasons are declared beside their kinds; this
table stands apart, because what is to be done often lies with another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kubeloop import condition_types as conditions
from kubeloop import conditions as kube
from kubeloop.condition_types import Condition, ConditionType
from modelplane_operator.api import inference_class as classes
from modelplane_operator.api import inference_cluster as clusters
from modelplane_operator.api import inference_gateway as gateways
from modelplane_operator.api import llm_inference as inferences
from modelplane_operator.api import model_cache as caches
from modelplane_operator.api import model_deployment as deployments
from modelplane_operator.api import model_endpoint as endpoints
from modelplane_operator.api import model_replica as replicas
from modelplane_operator.api import model_service as services
from modelplane_operator.api import reasons
from modelplane_operator.api import serving_stack as stacks
from modelplane_operator.api.clusters import provisioning as clouds


class Remedy(NamedTuple):
    """What to do, and where more of it stands."""

    do: str
    page: str = ""
    """A page of docs/, with its anchor."""


_DRAIN = "scheduling.md#keeping-replicas-off-a-cluster-and-draining-it"
_WAIT = "Wait: the operator continues by itself."
_HELM = Remedy("Fix the cause that Helm's error in the message names; the operator tries again.", "serving-stack.md")
_REPLACED = Remedy(
    "Wait some seconds. If it comes back, stop what writes the Secret that the message names.",
    "hub-gateway.md#between-the-hub-gateway-and-clusters",
)
_CACHE = "model-cache.md#troubleshooting"
_MUTUAL_TLS = "hub-gateway.md#between-the-hub-gateway-and-clusters"
_ROLLOUT = "day-2.md#changed-charts-go-over-the-fleet-in-waves"
_PICKER = "serving-stack.md#when-an-endpoint-picker-does-not-answer"
_PODS_OF_PICKER = (
    "kubectl describe pods --namespace modelplane-NAMESPACE --selector modelplane.ai/picker=REPLICA, then kubectl logs "
    "with the same options."
)
_ABANDON = "Restore the connection, or give up the objects there with the annotation modelplane.ai/abandon=true."

REMEDIES: Mapping[ConditionType, Remedy] = {
    # of all kinds
    conditions.Synced.RECONCILE_ERROR: Remedy(
        "Read the error in the message: mostly a permission is missing, or an API server rejects an object."
    ),
    conditions.Synced.QUARANTINED: Remedy(
        "Read the log of the operator's container that died. To have the object tried again, change its annotation "
        "modelplane.ai/retry.",
        "operations.md#when-an-object-ends-the-process",
    ),
    conditions.Ready.DEGRADED: Remedy(
        "Correct what the message names; nothing else waits for it.",
        "clusters.md#degraded-clusters",
    ),
    conditions.Ready.CREATING: Remedy("Wait; if it lasts, look at the object that the message names."),
    conditions.Ready.PARTIAL: Remedy("Look at what the message names; the rest works."),
    conditions.Ready.UNREACHABLE: Remedy(
        "Restore the connection to what the message names; workloads there keep running."
    ),
    conditions.ServerVerified.NOT_VERIFIED: Remedy("Put the CA certificate of the API server into the kubeconfig."),
    # ModelDeployment
    deployments.ReplicasScheduled.SCHEDULING: Remedy(_WAIT),
    deployments.ReplicasScheduled.NO_CLUSTERS: Remedy("Add a cluster.", "clusters.md"),
    deployments.ReplicasScheduled.INVALID_NODE_SELECTOR: Remedy(
        "Correct the selector at the line and column that the message names.", "selector-language.md"
    ),
    deployments.ReplicasScheduled.NO_MATCHING_CLUSTERS: Remedy(
        "Correct clusterSelector of what the message names, or label a cluster."
    ),
    deployments.ReplicasScheduled.TAINTED: Remedy("Tolerate the taint, or remove it from the cluster.", _DRAIN),
    deployments.ReplicasScheduled.CLUSTERS_NOT_READY: Remedy(
        "Look at the conditions of the clusters that the message names."
    ),
    deployments.ReplicasScheduled.NO_CACHE_STORAGE: Remedy(
        "Name a StorageClass in spec.cluster.existing.cache of the InferenceCluster that the message names.", _CACHE
    ),
    deployments.ReplicasScheduled.NO_MATCHING_DEVICES: Remedy(
        "Request what the nearest device in the message has (modelplane hardware lists all), or add a pool.",
        "scheduling.md#reading-the-reasons",
    ),
    deployments.ReplicasScheduled.INSUFFICIENT_CAPACITY: Remedy(
        "Free nodes, or enlarge the pool that the message names.", "scheduling.md#reading-the-reasons"
    ),
    deployments.ReplicasReady.NO_REPLICAS_SCHEDULED: Remedy("See the condition ReplicasScheduled."),
    deployments.ReplicasReady.MODEL_STARTING: Remedy(
        "Wait: an engine loads its weights before it answers, which takes minutes to an hour."
    ),
    deployments.ReplicasReady.REPLICAS_FAILING: Remedy("See the conditions of the replica that the message names."),
    deployments.Progressing.NO_OTHER_PLACE: Remedy(
        "Make room on another cluster, or end them: annotate their cluster with modelplane.ai/force-drain=true.",
        _DRAIN,
    ),
    deployments.Progressing.SOURCE_MISSING: Remedy(
        "Create the Secret or ConfigMap that the message names, in the namespace of the ModelDeployment."
    ),
    deployments.Progressing.STALLED: Remedy("See the condition ReplicasReady."),
    deployments.ModelCacheResolved.UNRESOLVED: Remedy(_WAIT),
    deployments.ModelCacheResolved.NOT_FOUND: Remedy(
        "Create the ModelCache, or correct modelCacheRef.", "model-cache.md"
    ),
    deployments.UpToDate.OUTDATED: Remedy(
        "Run `modelplane roll NAME` when a restart of the engines suits you; until then they run as they are.",
        "day-2.md#rolling-models",
    ),
    deployments.UpToDate.ROLLING: Remedy(_WAIT),
    deployments.UpToDate.WAITING_FOR_WINDOW: Remedy(
        "Wait for the window, or run `modelplane roll NAME --now`.", "day-2.md#maintenance-windows"
    ),
    deployments.UpToDate.WAITING_FOR_ROOM: Remedy(
        "Free a node or add a replica, or run `modelplane roll NAME` when an outage of the model suits you.",
        "day-2.md#rolling-models",
    ),
    deployments.PodTemplateAllowed.LEFT_OUT: Remedy(
        "Remove it from the template, or have the cluster allow it in spec.isolation.pods.",
        "clusters.md#keeping-tenants-apart",
    ),
    # ModelReplica
    replicas.ModelAccepted.WAITING_FOR_CLUSTER: Remedy("Look at ClusterReady of the replica's InferenceCluster."),
    replicas.ModelAccepted.DEPLOYING: Remedy(_WAIT),
    replicas.ModelAccepted.MODEL_CACHE_HYDRATING: Remedy("Wait; the ModelCache says how far it is.", "model-cache.md"),
    replicas.ModelAccepted.MODEL_CACHE_FAILED: Remedy(
        "Fix what the message names; the ModelCache has more of it.", _CACHE
    ),
    replicas.ModelAccepted.INVALID_ENGINE: Remedy("Correct the engine in the ModelDeployment, as the message says."),
    replicas.ModelAccepted.NOT_SERVED: Remedy(
        "On the replica's cluster, run kubectl get crd KIND with the kind in the message. If it is missing, install "
        "it; if it exists, apply examples/access/own-software.yaml again.",
        "permissions.md#on-workload-clusters",
    ),
    replicas.ModelAccepted.SOURCE_NOT_FOUND: Remedy(
        "Create the Secret or ConfigMap that the message names, in the namespace of the ModelDeployment."
    ),
    replicas.CacheTransfer.NOT_CONFIGURED: Remedy("Give the engines the arguments that the message names."),
    replicas.ModelReady.WAITING_FOR_MODEL: Remedy("See the condition ModelAccepted."),
    replicas.ModelReady.MODEL_STARTING: Remedy(
        "Wait: an engine loads its weights before it answers, which takes minutes to an hour."
    ),
    replicas.ModelReady.CRASH_LOOP: Remedy(
        "Read the engine's log on its cluster (kubectl logs --previous), and correct its arguments or its image."
    ),
    replicas.ModelReady.IMAGE_PULL_FAILED: Remedy("Correct the image, or name a Secret for it in imagePullSecrets."),
    replicas.ModelReady.CANNOT_START: Remedy("Fix the cause that the node's error in the message names."),
    replicas.ModelReady.PODS_REJECTED: Remedy(
        "Raise the quota that the message names, or request less: it is of the namespace on the replica's cluster."
    ),
    replicas.ModelReady.UNSCHEDULABLE: Remedy(
        "Free the resources that the message names on the cluster's nodes, or request less."
    ),
    replicas.ModelReady.NOT_ANSWERING: Remedy("Read the engine's log, by the command in the message."),
    replicas.ModelReady.ROUTE_REFUSED: Remedy(
        "On the cluster, `kubectl describe httproutes -n modelplane-NAMESPACE` shows the gateway's error."
    ),
    replicas.ModelReady.PICKER_NOT_READY: Remedy(f"Wait; if it lasts, run on the cluster {_PODS_OF_PICKER}", _PICKER),
    replicas.PickerReady.NOT_ASKED: Remedy(
        "Fix the cause that the gateway reports: run on the cluster kubectl describe envoyextensionpolicies REPLICA "
        "--namespace modelplane-NAMESPACE. Pickers need Envoy Gateway 1.8 or newer.",
        _PICKER,
    ),
    replicas.PickerReady.STARTING: Remedy(
        "Wait: until then requests are answered, except in mode PrefillDecode. If it lasts, run on the cluster "
        f"{_PODS_OF_PICKER}",
        _PICKER,
    ),
    replicas.PickerReady.AWAY: Remedy(
        f"Look at the picker's pods: run on the cluster {_PODS_OF_PICKER} Until then requests are answered, except in "
        "mode PrefillDecode.",
        _PICKER,
    ),
    replicas.ModelReady.CLUSTER_UNREACHABLE: Remedy(
        "Restore the connection to the cluster; failover moves the replica if the deployment enables it.",
        "scheduling.md",
    ),
    # ModelEndpoint
    endpoints.RoutingReady.WAITING_FOR_BACKEND: Remedy(_WAIT),
    endpoints.RoutingReady.INVALID_URL: Remedy(
        "Correct spec.url, as the message says.", "hub-gateway.md#where-endpoints-may-lead"
    ),
    endpoints.RoutingReady.CREDENTIALS_MISSING: Remedy("Create the Secret, with the key that the message names."),
    # ModelService
    services.EndpointsResolved.NO_ENDPOINTS: Remedy("Correct the selector, or wait for the replicas that it selects."),
    services.RoutingReady.CONFIGURING: Remedy("Wait for an endpoint to answer; the message says which are not ready."),
    services.RoutingReady.ROUTE_REFUSED: Remedy("Fix the cause that the gateway's error in the message names."),
    services.RoutingReady.WAITING_FOR_GATEWAY: Remedy(
        "Create the InferenceGateway named default, or look at its conditions.", "hub-gateway.md"
    ),
    services.AuthReady.SECRET_NOT_FOUND: Remedy("Create the Secret that the message names.", "hub-gateway.md#api-keys"),
    services.AuthReady.SECRET_FORBIDDEN: Remedy(
        "Ask the platform team to add the namespace to tenantNamespaces of the operator's chart.", "permissions.md"
    ),
    services.AuthReady.SECRET_TOO_LARGE: Remedy("Spread the keys over several Secrets.", "hub-gateway.md#api-keys"),
    services.AuthReady.NO_KEYS: Remedy("Write keys into the Secret that the message names.", "hub-gateway.md#api-keys"),
    services.AuthReady.KEY_SERVICE_UNAVAILABLE: Remedy(
        "Check the Deployment modelplane-keys in modelplane-system, and that the gateway reaches it."
    ),
    services.AuthReady.NOT_ENFORCED: Remedy("Check the status of the service's policy or Middleware on the gateway."),
    services.Answering.NOT_ANSWERED: Remedy("Look at the endpoints; the message says with which status requests fail."),
    services.Answering.GATEWAY_UNREACHABLE: Remedy(
        "Let the operator's pods reach the hub gateway: until then Ready depends on the routes alone.",
        "hub-gateway.md#whether-a-model-answers",
    ),
    services.Answering.ASKING: Remedy(_WAIT),
    # ModelCache
    caches.ClustersMatched.NO_CLUSTERS: Remedy(
        "Give a cluster storage for caches, or correct clusterSelector.", _CACHE
    ),
    caches.ArtifactReady.NO_CLUSTERS: Remedy("Give a cluster storage for caches, or correct clusterSelector.", _CACHE),
    caches.ArtifactReady.AUTH_SECRET_MISSING: Remedy("Create the Secret, with the key that the message names.", _CACHE),
    caches.ArtifactReady.TOO_MANY: Remedy("Delete caches that nothing uses, or use another namespace.", _CACHE),
    caches.ArtifactReady.FAILED: Remedy("Fix what the message names; staging starts again by itself.", _CACHE),
    caches.ArtifactReady.VOLUME_NOT_BOUND: Remedy(
        "On the cluster, run the command in the message; then correct the StorageClass or the claim.", _CACHE
    ),
    caches.ArtifactReady.CONTENTS_DIFFER: Remedy("Pin the content, as the message says.", _CACHE),
    caches.ArtifactReady.PARTIAL: Remedy("Wait; status.clusters says how far each cluster is."),
    caches.ArtifactReady.HYDRATING: Remedy("Wait; status.clusters says how far each cluster is."),
    # InferenceClass and InferenceCluster
    classes.Accepted.INVALID_DEVICE: Remedy("Correct the attribute or capacity that the message names."),
    clusters.ClusterReady.WAITING_FOR_CLASSES: Remedy("Create the InferenceClass, or correct className of the pool."),
    clusters.ClusterReady.INVALID_NODE_POOL: Remedy("Correct the InferenceClass that the message names."),
    clusters.ClusterReady.PROVISIONING: Remedy("Wait: a cloud takes up to half an hour.", "eks.md"),
    clusters.ClusterReady.PROVISIONING_FAILED: Remedy(
        "Fix the cause that the cloud's error in the message names.", "eks.md"
    ),
    clusters.ClusterReady.UNSUPPORTED_SOURCE: Remedy(
        "Add a cluster of that cloud with source Existing.", "clusters.md"
    ),
    clusters.ClusterReady.NOT_PERMITTED: Remedy(
        "Apply the access manifest there again.", "permissions.md#on-workload-clusters"
    ),
    clusters.ClusterReady.INVALID_KUBECONFIG: Remedy("Put a valid kubeconfig into the Secret that the message names."),
    clusters.ClusterReady.UNREACHABLE: Remedy(
        "Restore the connection to the address that the message names; workloads there keep running."
    ),
    clusters.ClusterReady.MISBEHAVING: Remedy(
        "Find out why the API server does this. If the cluster is only large, raise cluster-limits.",
        "clusters.md#when-a-cluster-misbehaves",
    ),
    clusters.ClusterReady.IDENTIFYING: Remedy("Wait half a minute.", "clusters.md#the-same-cluster-under-two-names"),
    clusters.ClusterReady.REGISTERED_TWICE: Remedy(
        "Delete one of the two InferenceClusters.", "clusters.md#the-same-cluster-under-two-names"
    ),
    clusters.ClusterReady.ABANDONED: Remedy("Delete on that cluster what the message names.", "clusters.md#deleting"),
    clusters.CredentialsRenewed.NOT_RENEWED: Remedy(
        "Set credentialRenewal to TokenRequest, or write another token before this one ends.",
        "permissions.md#on-workload-clusters",
    ),
    clusters.BackendReady.WAITING_FOR_CLUSTER: Remedy("See the condition ClusterReady."),
    clusters.BackendReady.INSTALLING: Remedy(
        "Wait: charts take minutes; the ServingStack says which one is installing."
    ),
    clusters.BackendReady.INSTALL_FAILED: _HELM,
    clusters.BackendReady.NOT_INSTALLED: Remedy("Install what the message names on that cluster.", "serving-stack.md"),
    clusters.BackendReady.ADDRESS_IN_USE: Remedy("Give the cluster's gateway an address of its own."),
    clusters.BackendReady.CERTIFICATE_REPLACED: _REPLACED,
    clusters.BackendReady.GATEWAY_SILENT: Remedy(
        "Look at the pods of the gateway on that cluster, and at the network between it and the hub.",
        "hub-gateway.md#whether-a-model-answers",
    ),
    clusters.BackendReady.UNREACHABLE: Remedy("See the condition ClusterReady."),
    clusters.BackendReady.DEGRADED: Remedy(
        "Correct what the message names; models run without it.", "clusters.md#degraded-clusters"
    ),
    clusters.GatewaySecured.SWITCHING: Remedy(_WAIT),
    clusters.GatewaySecured.NOT_KNOWN: Remedy(
        "Look at MutualTLSReady of the InferenceGateway named default.", _MUTUAL_TLS
    ),
    clusters.GatewaySecured.CONFIGURING: Remedy(
        "Wait; if it lasts, look at the gateway that the message names.", _MUTUAL_TLS
    ),
    clusters.GatewaySecured.OPEN: Remedy("Correct what the message names, unless http is what you want.", _MUTUAL_TLS),
    clusters.NodePoolsValid.WAITING_FOR_CLASSES: Remedy("Create the InferenceClass, or correct className of the pool."),
    clusters.NodePoolsValid.INVALID_CLASS: Remedy("Correct the InferenceClass, as its condition Accepted says."),
    clusters.NodePoolsValid.NOT_MADE: Remedy(
        "Correct the pool or its InferenceClass, as the message says; until then the cluster stays as it is."
    ),
    clusters.GPUReady.NODES_MISSING: Remedy(
        "Label the nodes modelplane.ai/pool=POOL, uncordon them, or correct nodeCount.", "clusters.md#nodes-that-count"
    ),
    clusters.GPUReady.DEVICES_MISSING: Remedy(
        "Look at the DRA driver on the nodes that the message names, or correct the InferenceClass.",
        "clusters.md#nodes-that-count",
    ),
    clusters.GPUReady.NOT_SEEN: Remedy(
        "Let the kubeconfig's user list nodes and ResourceSlices.", "permissions.md#on-workload-clusters"
    ),
    clusters.ObjectsOwned.ORPHANS_FOUND: Remedy(
        "Delete what the message names, unless it is another hub's.", "clusters.md#what-is-left-behind"
    ),
    # InferenceGateway and ServingStack
    gateways.ControllerReady.INSTALLING: Remedy("Wait: charts take minutes."),
    gateways.ControllerReady.INSTALL_FAILED: Remedy(
        "Fix the cause that Helm's error in the message names; the operator tries again.",
        "hub-gateway.md#when-something-is-in-the-way",
    ),
    gateways.ControllerReady.ROLLED_BACK: Remedy(
        "Fix the cause that Helm's error in the message names; the previous release serves requests.",
        "hub-gateway.md#when-something-is-in-the-way",
    ),
    gateways.ControllerReady.NOT_SERVED: Remedy("Delete it: only the InferenceGateway named default is used."),
    gateways.TLSReady.CERTIFICATE_UNUSABLE: Remedy(
        "Write a certificate and its key into the Secret, of type kubernetes.io/tls.", "hub-gateway.md#https"
    ),
    gateways.TLSReady.CONFIGURING: Remedy("Wait; if it lasts, look at the conditions of the gateway's Gateway."),
    gateways.TLSReady.NOT_ASKED: Remedy("Set spec.tls.", "hub-gateway.md#https"),
    gateways.MutualTLSReady.PREPARING: Remedy(_WAIT),
    gateways.MutualTLSReady.REPLACED: _REPLACED,
    gateways.MutualTLSReady.NOT_OFFERED: Remedy("Correct what the message names.", _MUTUAL_TLS),
    stacks.Installed.INSTALLING: Remedy("Wait: charts take minutes; status.components shows the state of each."),
    stacks.Installed.FAILED: _HELM,
    stacks.ServingStackRollout.WAITING: Remedy(
        "Wait for the clusters that are first: modelplane stack status shows them.", _ROLLOUT
    ),
    stacks.ServingStackRollout.WATCHING: Remedy(_WAIT, _ROLLOUT),
    stacks.ServingStackRollout.STOPPED: Remedy(
        "Correct what the message names, then modelplane stack resume; or keep the old charts by modelplane stack"
        " abort.",
        _ROLLOUT,
    ),
    stacks.ServingStackRollout.ABORTED: Remedy("Let it change its charts by modelplane stack resume.", _ROLLOUT),
    stacks.GatewayCertified.REPLACED: _REPLACED,
    stacks.Installed.ROLLED_BACK: Remedy(
        "Fix the cause that Helm's error in the message names, then modelplane stack resume; the previous release is"
        " running.",
        "serving-stack.md",
    ),
    # clusters that clouds make
    clouds.CredentialsValid.NOT_ACCEPTED: Remedy(
        "Write valid credentials into the Secret, or grant them the permission that the cloud's error names.", "eks.md"
    ),
    clouds.CredentialsValid.ANOTHER_ACCOUNT: Remedy(
        "Write credentials of the account that the message names into the Secret."
    ),
    clouds.CredentialsValid.NO_SDK: Remedy("Install the operator with the extra that the message names."),
    clouds.CredentialsValid.NOT_FOUND: Remedy("Write credentials into the Secret that the message names.", "eks.md"),
    clouds.CapacityAvailable.EXHAUSTED: Remedy(
        "Have the quota raised, or choose another zone or machine; it is tried again every ten minutes."
    ),
    clouds.CapacityAvailable.NOT_OFFERED: Remedy(
        "Correct the machine, zone or reservation that the message names.", "eks.md#before-the-first-cluster"
    ),
    clouds.QuotaAvailable.INSUFFICIENT: Remedy(
        "Have the quota in the message raised, or request fewer nodes.", "eks.md#before-the-first-cluster"
    ),
    clouds.QuotaAvailable.LIMITED: Remedy("Have the quota raised before the pool grows, or lower maxNodeCount."),
    clouds.QuotaAvailable.NOT_ASKED: Remedy(
        "Allow the operator to read quotas (examples/access); the cluster is created anyway.",
        "eks.md#before-the-first-cluster",
    ),
    clouds.NetworkReady.CREATING: Remedy(_WAIT),
    clouds.ControlPlaneReady.CREATING: Remedy("Wait: a cloud takes up to half an hour."),
    clouds.NodePoolsReady.CREATING: Remedy("Wait; if it lasts, read the cloud's error in the condition Stalled."),
    clouds.Stalled.STALLED: Remedy("Fix the cause that the cloud's error in the message names."),
    # LLMInference
    inferences.TargetResolved.NOT_FOUND: Remedy("Create the Secret again, or name another cluster.", "llminference.md"),
    inferences.TargetResolved.NOT_GRANTED: Remedy(
        "Correct the name, or ask the platform team to grant the namespace access.",
        "llminference.md#granting-namespaces-access-to-a-cluster",
    ),
    inferences.TargetResolved.HOST_NOT_GRANTED: Remedy(
        "Choose another ingressHost, or ask the platform team to grant this one to the namespace.",
        "llminference.md#granting-namespaces-access-to-a-cluster",
    ),
    inferences.TargetResolved.INVALID_KUBECONFIG: Remedy("Put a valid kubeconfig into the Secret."),
    inferences.TargetResolved.FORBIDDEN: Remedy(
        "Give the account the permissions in the namespace that the message names.",
        "llminference.md#deploying-to-a-cluster-of-your-own",
    ),
    inferences.TargetResolved.UNREACHABLE: Remedy("Restore the connection to the cluster that the message names."),
    inferences.TargetResolved.CONNECTING: Remedy(_WAIT),
    inferences.TargetResolved.TOO_MANY_LOCATIONS: Remedy(_ABANDON, "llminference.md#moving-and-deleting"),
    inferences.RuntimeAvailable.NOT_INSTALLED: Remedy("Install the vLLM production-stack operator on that cluster."),
    inferences.RuntimeAvailable.NOT_KNOWN: Remedy("See the condition TargetResolved."),
    inferences.MemoryKnown.NOT_KNOWN: Remedy("Set spec.memory.", "llminference.md#deploying-to-the-fleet"),
    inferences.ModelReady.UPDATING: Remedy(_WAIT),
    inferences.ModelReady.NOT_READY: Remedy("Wait; if it lasts, look at what the message names."),
    inferences.ModelReady.FAILING: Remedy("Fix the cause that the message names, or run the command in it."),
    inferences.ModelReady.NOT_CREATED: Remedy("See the conditions TargetResolved and MemoryKnown."),
    inferences.ModelReady.NAME_TAKEN: Remedy(
        "Delete what the message names, or give the LLMInference another name.",
        "llminference.md#granting-namespaces-access-to-a-cluster",
    ),
    inferences.ModelReady.UNKNOWN: Remedy("Check that the vLLM production-stack operator runs on that cluster."),
    inferences.OldCopiesRemoved.REMOVING: Remedy(_WAIT),
    inferences.OldCopiesRemoved.LEFT_BEHIND: Remedy(_ABANDON, "llminference.md#moving-and-deleting"),
}


def remedy(kind: str, condition: Condition | kube.Condition) -> str:
    """What to do about a condition of an object of that kind; empty where there is nothing to do."""
    found = reasons.find(kind, condition)
    known = REMEDIES.get(found) if found else None
    return known.do if known else ""
