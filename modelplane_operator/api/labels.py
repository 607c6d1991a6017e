"""Every label, annotation and finalizer key, once."""

from __future__ import annotations

from kubeloop.naming import Naming, owner_uid, use
from modelplane_operator.api.names import SYSTEM_NAMESPACE

__all__ = ["owner_uid"]

PREFIX = "modelplane.ai/"

# On replicas and their endpoints, for the selectors of ModelServices and of `kubectl get -l`.
DEPLOYMENT = f"{PREFIX}deployment"
CLUSTER = f"{PREFIX}cluster"
REPLICA_INDEX = f"{PREFIX}replica-index"

# On pods of a workload cluster.
SERVING = f"{PREFIX}serving"  # the pods that answer requests, by replica
WORKLOAD = f"{PREFIX}workload"  # the pods of one engine
GANG_ROLE = f"{PREFIX}lws-role"
GANG = "leaderworkerset.sigs.k8s.io/group-key"  # the pods of one gang, and of no other: set by the controller of gangs

# On nodes of a workload cluster.
POOL = f"{PREFIX}pool"

RELEASE = f"{PREFIX}release"
INTERRUPTED = f"{PREFIX}interrupted"  # the revision of a Helm release whose end Helm did not record

# On every child, on the hub and on workload clusters: its owner. The uid decides which children may be pruned.
OWNER_KIND = f"{PREFIX}owner-kind"
OWNER_NAMESPACE = f"{PREFIX}owner-namespace"
OWNER_NAME = f"{PREFIX}owner-name"
OWNER_UID = f"{PREFIX}owner-uid"

PICKER_CONFIG_CHECKSUM = f"{PREFIX}epp-config-checksum"  # annotation: rolls the picker when its configuration changes
BACKEND = f"{PREFIX}backend"  # annotation: where a ModelEndpoint's Service leads, as scheme://host:port
CERTIFICATE = f"{PREFIX}certificate"  # annotation: a hash of what the certificate in a Secret says, and who signed it
UNSIGNED_UNTIL = f"{PREFIX}unsigned-until"  # annotation: until when the key service accepts unsigned paths
MADE = f"{PREFIX}made"  # annotation: when a certificate or an authority was created
RENEW_AFTER = f"{PREFIX}renew-after"  # annotation: when a certificate is renewed
ALSO_REGISTERED = f"{PREFIX}also-registered"  # annotation: uids of InferenceClusters that may have the cluster, too
DRAINING_SINCE = f"{PREFIX}draining-since"  # annotation: when a replica was taken out of rotation, to change or to go
ABANDON = f"{PREFIX}abandon"  # annotation: "true" lets go of a cluster that is being deleted and does not answer
RETRY = f"{PREFIX}retry"  # annotation: another value has the operator try again an object that it left alone
ROLLING = f"{PREFIX}rolling"  # annotation: since when a replica changes its outdated pods, until it answers again
# annotation of a deployment: which outdated pods to change, as "security", "always", or a rendering; with ",now" at the
# end, without waiting for a maintenance window
ROLL = f"{PREFIX}roll"
ROLL_NOW = ",now"
CANARY = f"{PREFIX}canary"  # label of an InferenceCluster or ServingStack: "true" gets changed charts first
KEEP_CHARTS = f"{PREFIX}keep-charts"  # annotation of a stack: the target of a rollout that it does not follow
PAUSED = "crossplane.io/paused"  # annotation: "true" leaves the object alone, a cluster's deletion too
HELD_NODES = f"{PREFIX}held-nodes"  # annotation: JSON, nodes by pool that pods of an earlier shape may still use
SKIP_PREFLIGHT = (
    f"{PREFIX}skip-preflight"  # annotation of a cluster on a cloud: "true" creates its pools without preflight checks
)
FORCE_DRAIN = f"{PREFIX}force-drain"  # annotation of a cluster: "true" ends replicas that have no place elsewhere, too
DRAIN = f"{PREFIX}drain"  # key of the taint by which `modelplane drain` moves replicas off a cluster
CONTENT = f"{PREFIX}content"  # annotation: the content that a volume of a ModelCache is for
STAGED = f"{PREFIX}staged"  # annotation: the revision whose files such a volume has completely
PROGRESS = f"{PREFIX}progress"  # annotation: how far a hydration is, as JSON, written by itself
ATTEMPT = f"{PREFIX}attempt"  # annotation of a Job: the number of the attempt to hydrate the volume
FINALIZER = f"{PREFIX}finalizer"

# What the picker of a replica with split prefill and decode tells the engines apart by.
PICKER_ROLE = "llm-d.ai/role"
PICKER_SERVING = "llm-d.ai/inference-serving"
PICKER_APP = "app"
PICKER = f"{PREFIX}picker"  # on the pods of a picker: nobody else can have a pod that its Service leads to
ENGINE_TYPE = "llm-d.ai/engine-type"  # which metrics an engine has; vLLM's, without it

# Kubernetes' own.
SERVICE_NAME = "kubernetes.io/service-name"
SLICE_MANAGER = "endpointslice.kubernetes.io/managed-by"  # keeps Kubernetes' own controllers off an EndpointSlice
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
NAMESPACE_NAME = "kubernetes.io/metadata.name"  # on every namespace, set by the API server
POD_SECURITY = "pod-security.kubernetes.io/enforce"
APPLIED = f"{PREFIX}applied"  # annotation: the hash of the manifest that was applied last

FIELD_MANAGER = "modelplane"  # by which server-side apply knows our fields, and EndpointSlices their controller

use(
    Naming(
        field_manager=FIELD_MANAGER,
        system_namespace=SYSTEM_NAMESPACE,
        owner_kind=OWNER_KIND,
        owner_namespace=OWNER_NAMESPACE,
        owner_name=OWNER_NAME,
        owner_uid=OWNER_UID,
        finalizer=FINALIZER,
        applied=APPLIED,
        paused=PAUSED,
        retry=RETRY,
        release=RELEASE,
        interrupted=INTERRUPTED,
    )
)
