"""One cluster on EKS: what is known of its account is kept first, then it is made, then held to its spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from kubeloop.plan import Plan
from modelplane_operator.api.clusters.eks import EKSCluster, EKSClusterStatus, EKSFacts, EKSPool, Machine
from modelplane_operator.api.clusters.provisioning import CredentialsValid, Stalled
from modelplane_operator.clouds import cluster as clusters
from modelplane_operator.clouds import preflight
from modelplane_operator.clouds.cluster import Clouds, keep, refused, towards, without_the_cloud
from modelplane_operator.clouds.conditions import Parts
from modelplane_operator.clouds.decide import REQUEUE_SOON
from modelplane_operator.clouds.eks.render import kinds, quotas, resources
from modelplane_operator.clouds.eks.render.nodes import CNI, first_nodes, group_key, with_system
from modelplane_operator.clouds.eks.render.plan import Facts, zones_for
from modelplane_operator.clouds.eks.render.storage import FILE_SYSTEM, NAME
from modelplane_operator.clouds.preflight import PreflightResult, QuotaRequirement, judge
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.resources import Account, Found, Offer

EKS: Final = Clouds(
    EKSClusterStatus,
    kinds.KINDS,
    Parts(kinds.NETWORK, kinds.CLUSTER, kinds.NODEGROUP),
    let_in_by=kinds.ACCESS_POLICY,
    files=FILE_SYSTEM,
    storage_class=NAME,
)


@dataclass(frozen=True, slots=True)
class AwsFacts:
    """What AWS says of the account and the region."""

    zones: tuple[str, ...]
    principal: str
    cards: Mapping[str, int]
    """How many network cards each instance type has that take EFA; only those that there are."""
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The zones that have it."""


@dataclass(frozen=True, slots=True)
class Observed(clusters.Observed[EKSCluster]):
    """A cluster, and what was seen of it on AWS."""

    _: KW_ONLY
    told: AwsFacts | None = None
    """What AWS says of account and region; asked for while something of it is not known yet."""
    principal: str = ""
    """Who we are on AWS now; empty while that is not known."""


def plan(seen: Observed) -> Plan:
    if (decided := without_the_cloud(EKS, seen)) is not None:
        return decided
    last = seen.cluster.status
    if words := _another_account(seen):
        return refused(EKS, seen, CredentialsValid.ANOTHER_ACCOUNT, words)
    account, known = account_of(seen.cluster), last.facts if last else None
    if seen.terminating:
        return towards(EKS, seen, account, (), facts=known)
    try:
        facts = _facts(seen, known)
        if facts is None:
            return Plan(requeue_after=REQUEUE_SOON)
        if facts != known:
            return keep(EKS, seen, facts=facts)
        cards = {one.instance_type: one.efa for one in facts.machines}
        offered = {one.instance_type: one.zones for one in facts.machines}
        found = seen.seen.found if seen.seen else ()
        nodes = {one.key: int(one.live["desiredSize"]) for one in found if one.live.get("desiredSize")}
        cni = next((str(one.live["configurationValues"]) for one in found if one.key == CNI and one.live), "")
        of_groups = template_keys(found)
        wanted = resources(seen.cluster, Facts(facts.zones, facts.principal, cards, offered, nodes, of_groups, cni))
        return towards(EKS, seen, account, wanted, _before(seen), facts=facts)
    except CannotMake as error:
        return refused(EKS, seen, Stalled.STALLED, str(error))


def template_keys(found: Sequence[Found]) -> Mapping[str, str]:
    """Return the key of the launch template that each node group has; empty for one that has none.

    Nothing is said of a group whose template is not ours, or is gone.
    """
    keys = {one.id: one.key for one in found if one.kind == kinds.LAUNCH_TEMPLATE}
    groups = [one for one in found if one.kind == kinds.NODEGROUP]
    of_groups = {one.key: one.live.get("launchTemplate") for one in groups}
    return {
        group: keys[template["id"]] if template else ""
        for group, template in of_groups.items()
        if not template or template["id"] in keys
    }


def account_of(cluster: EKSCluster) -> Account:
    credentials = cluster.spec.credentials.name if cluster.spec.credentials else "default"
    return Account("EKS", cluster.spec.region, credentials)


def unbegun(cluster: EKSCluster) -> tuple[EKSPool, ...]:
    """The pools that are asked about before they are made."""
    return preflight.unbegun(cluster, with_system(cluster.spec.node_pools), lambda pool: group_key(pool.name))


_EACH: Final[Mapping[str, str]] = {"vpc": quotas.VPCS, "nat-eip": quotas.ADDRESSES, "cluster": quotas.CLUSTERS}
"""What a cluster has one of, by its key, and whose quota that is."""


def _before(seen: Observed) -> PreflightResult | None:
    if seen.offer is None:
        return None
    cluster, offer, pools = seen.cluster, seen.offer, unbegun(seen.cluster)
    one_each = [QuotaRequirement(code, 1, 1) for key, code in _EACH.items() if key not in preflight.begun(cluster)]
    of_pools = [
        QuotaRequirement(quotas.quota_of(pool.instance_type), cores * first_nodes(pool), cores * pool.max_node_count)
        for pool in pools
        if pool.capacity_block is None and (cores := offer.cores.get(pool.instance_type))
    ]
    blocks = [words for pool in pools if (words := _block_is_not(pool, offer))]
    return judge(
        replace(offer, absent=(*offer.absent, *blocks)),
        (*one_each, *of_pools),
        cluster.spec.kubernetes_version,
        f"ask for more in Service Quotas of {cluster.spec.region}",
    )


def _block_is_not(pool: EKSPool, offer: Offer) -> str:
    """What is wrong with the reservation of a pool; empty when nothing is, or when nobody could ask."""
    name = pool.capacity_block.capacity_reservation_id if pool.capacity_block else ""
    if name not in offer.reservations:
        return ""
    said, found = f"pool {pool.name}: capacity reservation {name}", offer.reservations[name]
    if found is None:
        return f"{said} does not exist in this account and region"
    if found.state not in _WILL_BE:
        return f"{said} is {found.state}: name another one"
    if found.machine != pool.instance_type:
        return f"{said} is of {found.machine}, and the pool of {pool.instance_type}"
    if found.zone and found.zone not in pool.zones:
        return f"{said} is in {found.zone}, and the pool in {', '.join(pool.zones)}"
    if found.count < first_nodes(pool):
        return f"{said} has {found.count} of the {first_nodes(pool)} machines that the pool begins with"
    return ""


_WILL_BE: Final = frozenset({"active", "assessing", "delayed", "payment-pending", "pending", "scheduled"})
"""What a reservation is that has machines, or will have."""


def _another_account(seen: Observed) -> str:
    """That the credentials are those of another account, where nothing of the cluster is to be seen; empty if not.

    All of it would be made there once more, or be taken for gone.
    """
    facts = seen.cluster.status.facts if seen.cluster.status else None
    ours, now = _account_id(facts.principal if facts else ""), _account_id(seen.principal)
    if not ours or not now or ours == now:
        return ""
    return (
        f"the credentials are those of AWS account {now}, and the cluster is in account {ours}: put credentials of "
        "that one back; nothing is changed until then"
    )


def _account_id(arn: str) -> str:
    """The fifth part of an ARN; empty where it has none."""
    return "".join(arn.split(":")[4:5])


def unknown_machines(cluster: EKSCluster) -> tuple[str, ...]:
    """The instance types of pools of which it is not known yet what they are like and where they are."""
    facts = cluster.status.facts if cluster.status else None
    known = {one.instance_type for one in facts.machines} if facts else set[str]()
    return tuple(sorted({pool.instance_type for pool in cluster.spec.node_pools} - known))


def _facts(seen: Observed, known: EKSFacts | None) -> EKSFacts | None:
    """What is known, and what AWS has told since; None while it has not.

    Of machines that no pool has any more nothing is kept.
    """
    lacking = unknown_machines(seen.cluster)
    if known is not None and not lacking:
        # Other credentials may be another's, who is let in to the cluster by an entry of his own.
        return known.model_copy(update={"principal": seen.principal}) if seen.principal else known
    if seen.told is None:
        return None
    if strange := [one for one in lacking if one not in seen.told.cards]:
        raise CannotMake(
            f"region {seen.cluster.spec.region} has no instance type {', '.join(strange)}: correct the pool's class"
        )
    told = seen.told
    new = (Machine(instance_type=one, efa=told.cards[one], zones=told.offered.get(one, ())) for one in lacking)
    used = {pool.instance_type for pool in seen.cluster.spec.node_pools}
    machines = [*(one for one in (known.machines if known else ()) if one.instance_type in used), *new]
    return EKSFacts(
        zones=known.zones if known else zones_for(seen.cluster, told.zones),
        principal=told.principal,
        machines=tuple(sorted(machines, key=lambda one: one.instance_type)),
    )
