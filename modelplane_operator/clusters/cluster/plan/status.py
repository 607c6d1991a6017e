"""The parts of an InferenceCluster's status that every plan sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeloop.condition_types import Condition
from kubeloop.objects import section
from kubeloop.words import list_names
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
from modelplane_operator.clusters.cluster.plan.connection import server_verified
from modelplane_operator.clusters.cluster.plan.hardware import PoolNodes
from modelplane_operator.clusters.cluster.plan.node_pools import ResolvedPools, count_nodes, resolve
from modelplane_operator.clusters.cluster.plan.observed import Observed

MAKE_CLASS = "create it, or correct className of the pool"


def conditions_of_connection(observed: Observed) -> Iterator[Condition]:
    """Yield the conditions of the connection: ServerVerified, and CredentialsRenewed for an expiring token."""
    yield server_verified(observed.unverified, observed.now)
    if observed.token is None:
        return
    existing = observed.cluster.spec.cluster.existing
    expiry = f"the token of the kubeconfig expires at {observed.token.until:%Y-%m-%dT%H:%M:%SZ}"
    if existing is not None and existing.credential_renewal == "TokenRequest":
        yield CredentialsRenewed.TOKEN_RENEWED.condition(
            observed.now, message=f"{expiry}, and the operator renews it before"
        )
    else:
        remedy = (
            "set spec.cluster.existing.credentialRenewal to TokenRequest, or write a new token into the Secret by then"
        )
        yield CredentialsRenewed.NOT_RENEWED.condition(observed.now, message=f"{expiry}: {remedy}")


def pools_valid(observed: Observed, resolved: ResolvedPools) -> Condition:
    """Return the NodePoolsValid condition."""
    suffix = "" if resolved.unknown else "; its pools stay as they were last read"
    if resolved.missing:
        return NodePoolsValid.WAITING_FOR_CLASSES.condition(
            observed.now, message=list_missing_classes(resolved) + suffix
        )
    if resolved.invalid:
        message = f"InferenceClass {list_names(resolved.invalid)} has devices that cannot be read: see Accepted there"
        return NodePoolsValid.INVALID_CLASS.condition(observed.now, message=message)
    if observed.problem:
        return NodePoolsValid.NOT_MADE.condition(
            observed.now, message=f"the cluster stays as it is: {observed.problem}"
        )
    if removed := [str(pool["name"]) for pool in observed.removed_pools]:
        message = f"pool {list_names(removed)} is removed once no model runs there"
        return NodePoolsValid.ALL_VALID.condition(observed.now, message=message)
    return NodePoolsValid.ALL_VALID.condition(observed.now)


def list_missing_classes(resolved: ResolvedPools) -> str:
    """Return the message about classes that do not exist, with the remedy; empty if all exist."""
    if not resolved.missing:
        return ""
    return f"InferenceClass {', '.join(resolved.missing)} does not exist: {MAKE_CLASS}"


def unusable_pools(observed: Observed, resolved: ResolvedPools) -> Iterator[str]:
    """Yield a message for each pool whose devices were never known."""
    for pool in observed.cluster.spec.node_pools:
        if pool.name in resolved.unknown:
            missing = pool.class_name in resolved.missing
            reason = f"does not exist: {MAKE_CLASS}" if missing else "has no device that can be read: see its Accepted"
            yield f"pool {pool.name}: InferenceClass {pool.class_name} {reason}"


def resolve_pools(observed: Observed) -> ResolvedPools:
    """Return the cluster's pools with their devices, by the classes and the last status."""
    last = observed.cluster.status
    return resolve(observed.cluster.spec.node_pools, observed.classes, last.gpu_pools if last else ())


def pool_statuses(
    observed: Observed, resolved: ResolvedPools, nodes: Mapping[str, PoolNodes], *, last: bool = True
) -> tuple[GpuPool, ...]:
    """Return the resolved pools with their node counts.

    `last`: True if a pool whose nodes are not observed keeps its last count.
    """
    previous = observed.cluster.status.gpu_pools if last and observed.cluster.status else ()
    return count_nodes(observed.cluster.spec.node_pools, resolved.pools, nodes, previous)


def status_of(
    observed: Observed,
    resolved: ResolvedPools,
    conditions: tuple[Condition, ...],
    *,
    deletion: DeletionStatus | None = None,
) -> InferenceClusterStatus:
    """Return the status with the given conditions, and the last observed values of the cluster itself."""
    existing, last = observed.cluster.spec.cluster.existing, observed.cluster.status
    connection_conditions = conditions_of_connection(observed) if observed.connected and deletion is None else ()
    storage_class = existing.cache.storage_class_name if existing and existing.cache else None
    if observed.infrastructure is not None:
        storage_class = section(observed.infrastructure, "status", "cache").get("storageClassName")
    return InferenceClusterStatus(
        provider_config_ref=ProviderConfigRef(name=names.provider_config(observed.cluster.metadata.name)),
        namespace=names.SYSTEM_NAMESPACE,
        gateway=last.gateway if last else None,
        cache=CacheStatus(storage_class_name=storage_class) if storage_class else None,
        gpu_pools=pool_statuses(observed, resolved, {}),
        observed=last.observed if last else None,
        replicas=len(observed.replicas),
        orphans=last.orphans if last else None,
        deletion=deletion,
        conditions=(*conditions, *connection_conditions),
    )
