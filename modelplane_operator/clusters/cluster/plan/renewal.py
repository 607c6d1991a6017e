"""The token that we have on a cluster, and when it is to be followed by another."""

from __future__ import annotations

from datetime import datetime, timedelta

from kubeloop.objects import Key
from kubeloop.plan import RenewToken
from modelplane_operator.api import names
from modelplane_operator.clusters.cluster.plan.observed import Observed

RENEWED_LATELY = timedelta(seconds=10)  # a token that is as young is not renewed, whatever its cluster's clock says


def renewal(seen: Observed) -> tuple[datetime, RenewToken] | None:
    """When the token is to be renewed, and how; None when it is not, or cannot be now.

    At half of its time, but not within seconds of its coming: the cluster's clock may be another than ours.
    """
    existing, token = seen.cluster.spec.cluster.existing, seen.token
    secret = existing.secret_ref if existing and existing.credential_renewal != "Never" else None
    if secret is None or token is None or _out_of_reach(seen):
        return None
    due = token.since + token.lasts / 2
    if seen.token_seen is not None:
        due = max(due, seen.token_seen + RENEWED_LATELY)
    where = Key(names.SYSTEM_NAMESPACE, secret.name)
    account = Key(token.namespace, token.account)
    name, seconds = seen.cluster.metadata.name, int(token.lasts.total_seconds())
    return due, RenewToken(name, account, seconds, where, secret.key)


def _out_of_reach(seen: Observed) -> bool:
    """Whether the cluster cannot be asked for another token, or our kubeconfig is no longer what the Secret holds."""
    return seen.unreachable is not None or seen.kubeconfig is not None or not seen.connected
