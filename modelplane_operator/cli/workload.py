"""Read workload clusters with the operator's kubeconfig, if the user may read its Secret on the hub."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kubeloop.client.kube import Kube, connect
from kubeloop.client.kubeconfigs import SecretKubeconfig
from kubeloop.errors import ClientError, Forbidden, Unauthorized, Unreachable
from kubeloop.objects import Key, Manifest, entries, labels_of, section
from kubeloop.resource import of
from kubeloop.types import POD, SECRET
from modelplane_operator.api import InferenceCluster, ModelReplica, labels, names
from modelplane_operator.cli.output import OutOfReachError


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of a replica."""

    name: str
    engine: str
    """Name of the engine in the replica's spec."""
    node: str
    """Name of the node; empty while the pod is not scheduled."""
    phase: str
    """Reason why its first waiting container waits, such as CrashLoopBackOff; otherwise the pod's phase."""
    ready: bool
    """True if all containers are ready."""
    restarts: int
    containers: tuple[str, ...]
    """Names of the containers. `modelplane logs` prints the log of the first one."""


@asynccontextmanager
async def connect_to_cluster(hub: Kube, cluster: str) -> AsyncGenerator[Kube]:
    """Connect to a workload cluster. Raise OutOfReachError or ClientError."""
    try:
        inference_cluster = InferenceCluster.parse(await hub.get(of(InferenceCluster), Key("", cluster)))
    except Forbidden:
        raise OutOfReachError(
            f"you may not read InferenceCluster {cluster}, on which it runs: ask the platform team; modelplane why has"
            " the last words of containers that ended"
        ) from None
    existing = inference_cluster.spec.cluster.existing
    # The operator stores no kubeconfig of such a cluster: it requests a short-lived token for each connection.
    if existing is None or existing.secret_ref is None:
        raise OutOfReachError(
            f"the hub stores no credentials for cluster {cluster}: get some of your own from its cloud, and use kubectl"
        )
    key = Key(names.SYSTEM_NAMESPACE, existing.secret_ref.name)
    try:
        secret = await hub.find(SECRET, key)
    except Forbidden:
        raise OutOfReachError(
            f"you may not read Secret {key} with the kubeconfig of cluster {cluster}: ask the platform team"
        ) from None
    access = SecretKubeconfig(key, existing.secret_ref.key, lambda _: secret, plain_http=True).read()
    async with connect(access) as kube:
        try:
            yield kube
        except (Forbidden, Unauthorized, Unreachable) as error:
            raise OutOfReachError(
                f"cluster {cluster} cannot be reached from this machine with the operator's kubeconfig: {error}; check"
                " the network between them"
            ) from None


async def pods(cluster: Kube, replica: ModelReplica) -> Sequence[PodState]:
    """Return the pods of a replica's engines."""
    # One list with a set selector, instead of one per engine.
    engines = {names.workload(replica.metadata.name, item.name): item.name for item in replica.spec.engines}
    selector = f"{labels.WORKLOAD} in ({','.join(sorted(engines))})"
    listing = await cluster.list(POD, namespace=names.remote_namespace(replica.key.namespace), selector=selector)
    states = (_to_state(pod, engines[labels_of(pod)[labels.WORKLOAD]]) for pod in listing.items)
    return sorted(states, key=lambda item: (item.engine, item.name))


def _to_state(pod: Manifest, engine: str) -> PodState:
    """Return the state of a pod."""
    # While a container waits, the phase is only Pending or Running; the reason says more.
    statuses, spec = entries(pod, "status", "containerStatuses"), section(pod, "spec")
    waiting = (section(status, "state", "waiting").get("reason") for status in statuses)
    return PodState(
        name=pod["metadata"]["name"],
        engine=engine,
        node=spec.get("nodeName") or "",
        phase=next(filter(None, waiting), None) or section(pod, "status").get("phase") or "",
        ready=bool(statuses) and all(status.get("ready") for status in statuses),
        restarts=sum(status.get("restartCount") or 0 for status in statuses),
        containers=tuple(status["name"] for status in entries(spec, "containers")),
    )


async def pods_of(hub: Kube, replica: ModelReplica) -> Sequence[PodState] | str:
    """Return the pods, or the reason why they cannot be read."""
    try:
        async with connect_to_cluster(hub, replica.spec.cluster_name) as cluster:
            return await pods(cluster, replica)
    except (OutOfReachError, ClientError) as error:
        return str(error)
