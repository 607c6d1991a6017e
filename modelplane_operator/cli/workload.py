"""What the command reads of workload clusters: with the kubeconfig that the operator has, where the hub lets the user
read its Secret."""

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
    """One pod of a replica."""

    name: str
    engine: str
    node: str
    phase: str
    ready: bool
    restarts: int
    containers: tuple[str, ...]


@asynccontextmanager
async def reached(hub: Kube, cluster: str) -> AsyncGenerator[Kube]:
    """A client of a workload cluster; raises OutOfReachError and ClientError."""
    try:
        found = InferenceCluster.parse(await hub.get(of(InferenceCluster), Key("", cluster)))
    except Forbidden:
        raise OutOfReachError(
            f"you may not read InferenceCluster {cluster}, on which it runs: have the platform team look; what a "
            "container said as it ended is in modelplane why"
        ) from None
    existing = found.spec.cluster.existing
    if existing is None or existing.secret_ref is None:
        raise OutOfReachError(
            f"the credentials of cluster {cluster} are made anew each time by the operator: ask its cloud for some of "
            "your own, and use kubectl"
        )
    key = Key(names.SYSTEM_NAMESPACE, existing.secret_ref.name)
    try:
        secret = await hub.find(SECRET, key)
    except Forbidden:
        raise OutOfReachError(
            f"you may not read Secret {key}, by which cluster {cluster} is reached: have the platform team look"
        ) from None
    access = SecretKubeconfig(key, existing.secret_ref.key, lambda _: secret, plain_http=True).read()
    async with connect(access) as kube:
        try:
            yield kube
        except (Forbidden, Unauthorized, Unreachable) as error:
            raise OutOfReachError(
                f"cluster {cluster} cannot be asked from here by the operator's kubeconfig: {error}; see whether this "
                "machine reaches its API server"
            ) from None


async def pods(cluster: Kube, replica: ModelReplica) -> Sequence[PodState]:
    """The pods of a replica's engines."""
    engines = {names.workload(replica.metadata.name, one.name): one.name for one in replica.spec.engines}
    selector = f"{labels.WORKLOAD} in ({','.join(sorted(engines))})"
    listing = await cluster.list(POD, namespace=names.remote_namespace(replica.key.namespace), selector=selector)
    found = (_state(pod, engines[labels_of(pod)[labels.WORKLOAD]]) for pod in listing.items)
    return sorted(found, key=lambda one: (one.engine, one.name))


def _state(pod: Manifest, engine: str) -> PodState:
    told, spec = entries(pod, "status", "containerStatuses"), section(pod, "spec")
    waiting = (section(one, "state", "waiting").get("reason") for one in told)
    return PodState(
        name=pod["metadata"]["name"],
        engine=engine,
        node=spec.get("nodeName") or "",
        phase=next(filter(None, waiting), None) or section(pod, "status").get("phase") or "",
        ready=bool(told) and all(one.get("ready") for one in told),
        restarts=sum(one.get("restartCount") or 0 for one in told),
        containers=tuple(one["name"] for one in entries(spec, "containers")),
    )


async def pods_of(hub: Kube, replica: ModelReplica) -> Sequence[PodState] | str:
    """The pods, or why they are not seen."""
    try:
        async with reached(hub, replica.spec.cluster_name) as cluster:
            return await pods(cluster, replica)
    except (OutOfReachError, ClientError) as error:
        return str(error)
