"""The parts of an InferenceCluster's status that every plan sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeloop.condition_types import Condition
from kubeloop.objects import section
from kubeloop.words import listed
from modelplane_operator.api import names
from modelplane_operator.api.inference_cluster import (
    CredentialsRenewed,
    DeletionStatus,
    GpuPool,
    InferenceClusterStatus,
    NodePoolsValid,
    ProviderConfigRef,
)
from modelplane_operator.api.shared import CacheStatus
from modelplane_operator.clusters.cluster.plan.connection import verified
from modelplane_operator.clusters.cluster.plan.hardware import PoolNodes
from modelplane_operator.clusters.cluster.plan.node_pools import ResolvedPools, counted, resolve
from modelplane_operator.clusters.cluster.plan.observed import Observed

MAKE_CLASS = "make it, or correct className of the pool"


def way_there(seen: Observed) -> Iterator[Condition]:
    """Yield the conditions of the connection: ServerVerified, and CredentialsRenewed for an expiring token."""
    yield verified(seen.unverified, seen.now)
    if seen.token is None:
        return
    existing = seen.cluster.spec.cluster.existing
    expiry = f"the token of the kubeconfig ends at {seen.token.until:%Y-%m-%dT%H:%M:%SZ}"
    if existing is not None and existing.credential_renewal == "TokenRequest":
        yield CredentialsRenewed.TOKEN_RENEWED.condition(seen.now, message=f"{expiry}, and is renewed before")
    else:
        remedy = (
            "set spec.cluster.existing.credentialRenewal to TokenRequest, or put another one into the Secret by then"
        )
        yield CredentialsRenewed.NOT_RENEWED.condition(seen.now, message=f"{expiry}: {remedy}")


def pools_valid(seen: Observed, resolved: ResolvedPools) -> Condition:
    """Return the NodePoolsValid condition."""
    suffix = "" if resolved.unknown else "; what was known of its pools stays"
    if resolved.missing:
        return NodePoolsValid.WAITING_FOR_CLASSES.condition(seen.now, message=missing_classes(resolved) + suffix)
    if resolved.invalid:
        message = f"what InferenceClass {listed(resolved.invalid)} says cannot be read: see Accepted there"
        return NodePoolsValid.INVALID_CLASS.condition(seen.now, message=message)
    if seen.problem:
        return NodePoolsValid.NOT_MADE.condition(seen.now, message=f"the cluster stays as it is: {seen.problem}")
    if removed := [str(pool["name"]) for pool in seen.removed_pools]:
        message = f"pool {listed(removed)} is removed once no model runs there"
        return NodePoolsValid.ALL_VALID.condition(seen.now, message=message)
    return NodePoolsValid.ALL_VALID.condition(seen.now)


def missing_classes(resolved: ResolvedPools) -> str:
    """Return the message about classes that do not exist, with the remedy; empty if all exist."""
    if not resolved.missing:
        return ""
    return f"InferenceClass {', '.join(resolved.missing)} does not exist: {MAKE_CLASS}"


def unusable_pools(seen: Observed, resolved: ResolvedPools) -> Iterator[str]:
    """Yield a message for each pool whose devices were never known."""
    for pool in seen.cluster.spec.node_pools:
        if pool.name in resolved.unknown:
            missing = pool.class_name in resolved.missing
            reason = f"does not exist: {MAKE_CLASS}" if missing else "has no device that can be read: see its Accepted"
            yield f"pool {pool.name}: InferenceClass {pool.class_name} {reason}"


def resolved_pools(seen: Observed) -> ResolvedPools:
    """Return the cluster's pools with their devices, by the classes and the last status."""
    last = seen.cluster.status
    return resolve(seen.cluster.spec.node_pools, seen.classes, last.gpu_pools if last else ())


def counted_pools(
    seen: Observed, resolved: ResolvedPools, nodes: Mapping[str, PoolNodes], *, last: bool = True
) -> tuple[GpuPool, ...]:
    """Return the resolved pools with their node counts.

    `last`: True if a pool whose nodes are not observed keeps its last count.
    """
    previous = seen.cluster.status.gpu_pools if last and seen.cluster.status else ()
    return counted(seen.cluster.spec.node_pools, resolved.pools, nodes, previous)


def status_of(
    seen: Observed, resolved: ResolvedPools, judged: tuple[Condition, ...], *, deletion: DeletionStatus | None = None
) -> InferenceClusterStatus:
    """Return the status with the given conditions, and the last observed values of the cluster itself."""
    existing, last = seen.cluster.spec.cluster.existing, seen.cluster.status
    connection_conditions = way_there(seen) if seen.connected and deletion is None else ()
    storage_class = existing.cache.storage_class_name if existing and existing.cache else None
    if seen.infrastructure is not None:
        storage_class = section(seen.infrastructure, "status", "cache").get("storageClassName")
    return InferenceClusterStatus(
        provider_config_ref=ProviderConfigRef(name=names.provider_config(seen.cluster.metadata.name)),
        namespace=names.SYSTEM_NAMESPACE,
        gateway=last.gateway if last else None,
        cache=CacheStatus(storage_class_name=storage_class) if storage_class else None,
        gpu_pools=counted_pools(seen, resolved, {}),
        observed=last.observed if last else None,
        replicas=len(seen.replicas),
        orphans=last.orphans if last else None,
        deletion=deletion,
        conditions=(*judged, *connection_conditions),
    )
