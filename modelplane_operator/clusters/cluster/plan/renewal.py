"""Plan when the operator's token for a cluster is renewed."""

from __future__ import annotations

from datetime import datetime, timedelta

from kubeloop.objects import Key
from kubeloop.plan import RenewToken
from modelplane_operator.api import names
from modelplane_operator.clusters.cluster.plan.observed import Observed

RENEWED_LATELY = timedelta(seconds=10)  # minimum age of a token before its renewal, whatever the cluster's clock says


def renewal(observed: Observed) -> tuple[datetime, RenewToken] | None:
    """Return when to renew the token and the step that does it; None if renewal is off or not possible now.

    A token is renewed after half of its lifetime, but not within seconds of its arrival: the cluster's clock may differ
    from the operator's.
    """
    existing, token = observed.cluster.spec.cluster.existing, observed.token
    secret = existing.secret_ref if existing and existing.credential_renewal != "Never" else None
    if secret is None or token is None:
        return None
    # The cluster cannot issue a token, or the Secret no longer holds the kubeconfig in use.
    if observed.unreachable is not None or observed.kubeconfig is not None or not observed.connected:
        return None
    renew_at = token.since + token.lasts / 2
    if observed.token_observed_at is not None:
        renew_at = max(renew_at, observed.token_observed_at + RENEWED_LATELY)
    secret_key = Key(names.SYSTEM_NAMESPACE, secret.name)
    account = Key(token.namespace, token.account)
    name, seconds = observed.cluster.metadata.name, int(token.lasts.total_seconds())
    return renew_at, RenewToken(name, account, seconds, secret_key, secret.key)
