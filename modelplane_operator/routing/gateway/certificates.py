"""Certificates for mutual TLS between the hub's gateway and the clusters' gateways.

A hub has its own numbered authorities; the Secret of each is created once and never changed. A new authority is trusted
for a while before it signs, and an old one for a while after it has last signed, so that two gateways trust each
other's certificates whichever of them learns of a change first. Keys are generated when a step is executed (`Issue`).

    REPLACED    age of the newest authority at which the next one is created
    SIGNS       age at which an authority begins to sign, and all certificates are issued again
    PAUSE       least time until a certificate that another client has replaced is issued again, as that client may
                replace it again and again
    UNUSABLE    time in which no more than ATTEMPTS authorities are created while none can be used, as another client
                may change each of them
    KEPT        time for which older ones stay trusted after that, until all certificates they signed have expired
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kubeloop.certificate import Certificate, Usage
from kubeloop.condition_types import Condition, ConditionType
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of, section
from kubeloop.plan import HUB, Issue
from modelplane_operator.api import labels, names

AUTHORITY_VALID: Final = timedelta(days=400)
REPLACED: Final = timedelta(days=300)
SIGNS: Final = timedelta(days=7)
VALID: Final = timedelta(days=30)
RENEWED: Final = timedelta(days=20)
TRUSTED_FOR: Final = VALID
PAUSE: Final = timedelta(seconds=5)
UNUSABLE: Final = timedelta(minutes=5)
ATTEMPTS: Final = 3
SKEW: Final = timedelta(hours=1)  # the tolerated difference between two machines' clocks

UNLABELLED: Final = "it was deleted, or lost the operator's labels"
"""Fault of a Secret that is not found any more."""
_NUMBERED = re.compile(rf"{re.escape(names.GATEWAY_AUTHORITY)}-([0-9]{{1,9}})")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that has been created."""

    secret: Key
    """Secret with the certificate and the key."""
    number: int
    """Number in the Secret's name; a newer authority has a higher one."""
    made: datetime
    """The time of its creation, from an annotation."""
    certificate: str
    """The certificate in PEM."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The authority that signs now, and the bundle of all authorities to trust."""

    signer: Key
    """The Secret of the authority that signs."""
    bundle: str
    """Certificates in PEM."""


def authorities(secrets: Iterable[Manifest]) -> Sequence[Authority]:
    """Return the authorities in the Secrets, oldest first; malformed ones are skipped."""
    result: list[Authority] = []
    for secret in secrets:
        number, created_at = _parse_number(secret), _parse_time(annotations_of(secret).get(labels.MADE, ""))
        if number is None or created_at is None or is_terminating(secret):
            continue
        try:
            certificate = base64.b64decode(section(secret, "data")["tls.crt"], validate=True).decode("ascii")
        except (KeyError, ValueError):
            continue
        if certificate.startswith("-----BEGIN CERTIFICATE-----"):
            result.append(Authority(key_of(secret), number, created_at, certificate))
    return sorted(result, key=lambda authority: authority.number)


def trust(authorities: Sequence[Authority], now: datetime) -> Trust | None:
    """Return the signing authority and the bundle; None while there is no authority."""
    if not authorities:
        return None
    return Trust(_find_signing(authorities, now).secret, "".join(authority.certificate for authority in authorities))


def spare(authorities: Sequence[Authority], now: datetime) -> Sequence[Authority]:
    """Return the authorities whose certificates have all expired."""
    if len(authorities) < 2:
        return ()
    signing = _find_signing(authorities, now)
    expired = signing.made + SIGNS + TRUSTED_FOR <= now
    return [authority for authority in authorities if authority.number < signing.number and expired]


def new_authority(secrets: Sequence[Manifest], now: datetime, metadata: Manifest) -> Issue | None:
    """Return the step that creates the next authority, when it is due; else None.

    It is a create, so that two operators at the same time create one. `metadata` is completed with a name.
    """
    known = authorities(secrets)
    created = [_parse_time(item["metadata"].get("creationTimestamp") or "") for item in secrets if _parse_number(item)]
    just_made = sum(timedelta() <= now - time < UNUSABLE for time in created if time)
    if now < known[-1].made + REPLACED if known else just_made >= ATTEMPTS:
        return None
    number = (
        max(
            (existing_number for existing_number in map(_parse_number, secrets) if existing_number is not None),
            default=0,
        )
        + 1
    )
    completed = {
        **metadata,
        "name": names.gateway_authority(number),
        "annotations": {labels.MADE: _format_time(now)},
    }
    desired = Certificate(f"Modelplane gateways {number}", "authority", now - SKEW, now + AUTHORITY_VALID)
    return Issue(completed, desired)


def leaf(  # noqa: PLR0917 - a certificate is made of all of these
    metadata: Manifest, name: str, usage: Usage, trusted: Trust, now: datetime, cluster: str = HUB
) -> Issue:
    """Return the step that issues a gateway's certificate, with the bundle that it trusts, as of now."""
    desired = Certificate(name, usage, now - SKEW, now + VALID, trusted.signer, trusted.bundle)
    dependencies = "\n".join((name, usage, str(trusted.signer), trusted.bundle))
    annotations = {
        labels.CERTIFICATE: hashlib.sha256(dependencies.encode()).hexdigest()[:16],
        labels.RENEW_AFTER: _format_time(now + RENEWED),
    }
    return Issue({**metadata, "annotations": annotations}, desired, cluster)


def is_current(secret: Manifest | None, desired: Issue, now: datetime) -> bool:
    """True if a Secret has the desired certificate and it need not be renewed.

    Only metadata are compared, as the content of Secrets on clusters is not read.
    """
    if secret is None or is_terminating(secret):
        return False
    live, desired_annotations = annotations_of(secret), desired.metadata["annotations"]
    renew_at = _parse_time(live.get(labels.RENEW_AFTER, ""))
    return (
        live.get(labels.CERTIFICATE) == desired_annotations[labels.CERTIFICATE]
        and renew_at is not None
        and now < renew_at
    )


def is_reported(conditions: Iterable[Condition], reason: ConditionType, now: datetime) -> bool:
    """True if a condition has said for a while that a certificate was replaced."""
    since = (
        item.last_transition_time for item in conditions if (item.type, item.reason) == (reason.type, reason.reason)
    )
    return any(not timedelta() <= now - time < PAUSE for time in since)


def was_just_issued(secret: Manifest | None, now: datetime) -> bool:
    """True if the operator has issued a Secret's certificate a moment ago."""
    renew_at = _parse_time(annotations_of(secret).get(labels.RENEW_AFTER, "")) if secret else None
    return renew_at is not None and timedelta() <= now - (renew_at - RENEWED) < PAUSE


def describe_replaced(secret: str, fault: str, cluster: str = HUB) -> str:
    """Return the message for a Secret that does not hold the certificate that the operator issued."""
    where = "" if cluster == HUB else f" on cluster {cluster}"
    return (
        f"Secret {names.SYSTEM_NAMESPACE}/{secret}{where} was changed by another client ({fault}): the operator issues "
        "the certificate again. If this repeats, stop what writes that Secret"
    )


def _find_signing(authorities: Sequence[Authority], now: datetime) -> Authority:
    """Return the newest authority that has been trusted long enough; the oldest if there is none."""
    return next((authority for authority in reversed(authorities) if authority.made + SIGNS <= now), authorities[0])


def _parse_number(secret: Manifest) -> int | None:
    """Return the number of an authority's Secret; None for another Secret."""
    match = _NUMBERED.fullmatch(secret["metadata"]["name"])
    return int(match[1]) if match else None


def _format_time(time: datetime) -> str:
    """Return the time as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_time(text: str) -> datetime | None:
    """Return a time with its zone; None if the text has none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
