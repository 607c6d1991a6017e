"""The certificates by which the hub's gateway and those of the clusters know each other: whose, and until when.

A hub has authorities of its own, numbered; the Secret of each is created once and never changed. A new one is trusted
for a while before it signs, and an old one for a while after it has signed last, so that whichever of two gateways
learns of a change first, each trusts what the other shows. Keys are made when a step is carried out (`Issue`).

    REPLACED    the newest is so old: another one is made
    SIGNS       it is trusted everywhere for so long, then it signs, and every certificate is made anew
    KEPT        the ones before are trusted for so long after that: until all that they signed has expired
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
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of, section
from kubeloop.plan import HUB, Issue
from modelplane_operator.api import labels, names

AUTHORITY_VALID: Final = timedelta(days=400)
REPLACED: Final = timedelta(days=300)
SIGNS: Final = timedelta(days=7)
VALID: Final = timedelta(days=30)
RENEWED: Final = timedelta(days=20)
KEPT: Final = VALID
SKEW: Final = timedelta(hours=1)  # between the clocks of two machines

_NUMBERED = re.compile(rf"{re.escape(names.GATEWAY_AUTHORITY)}-([0-9]{{1,9}})")


@dataclass(frozen=True, slots=True)
class Authority:
    """One that was made."""

    secret: Key
    number: int
    made: datetime
    certificate: str


@dataclass(frozen=True, slots=True)
class Trust:
    """Who signs now, and whom everybody is to trust."""

    signer: Key
    bundle: str
    """In PEM."""


def authorities(secrets: Iterable[Manifest]) -> Sequence[Authority]:
    """Those that the Secrets hold, the oldest first; what cannot be read is none."""
    found: list[Authority] = []
    for secret in secrets:
        number, made = _number(secret), _time(annotations_of(secret).get(labels.MADE, ""))
        if number is None or made is None or is_terminating(secret):
            continue
        try:
            certificate = base64.b64decode(section(secret, "data")["tls.crt"], validate=True).decode("ascii")
        except (KeyError, ValueError):
            continue
        if certificate.startswith("-----BEGIN CERTIFICATE-----"):
            found.append(Authority(key_of(secret), number, made, certificate))
    return sorted(found, key=lambda one: one.number)


def trust(known: Sequence[Authority], now: datetime) -> Trust | None:
    """None while there is no authority."""
    if not known:
        return None
    return Trust(_signing(known, now).secret, "".join(one.certificate for one in known))


def spare(known: Sequence[Authority], now: datetime) -> Sequence[Authority]:
    """Those that have signed nothing that is still valid."""
    if len(known) < 2:
        return ()
    signing = _signing(known, now)
    over = signing.made + SIGNS + KEPT <= now
    return [one for one in known if one.number < signing.number and over]


def new_authority(secrets: Sequence[Manifest], now: datetime, metadata: Manifest) -> Issue | None:
    """The next one, when it is time for it. Two operators that make it at once make one: it is only created.

    `metadata` is completed with a name.
    """
    known = authorities(secrets)
    if known and now < known[-1].made + REPLACED:
        return None
    number = max((found for found in map(_number, secrets) if found is not None), default=0) + 1
    named = {
        **metadata,
        "name": names.gateway_authority(number),
        "annotations": {labels.MADE: _written(now)},
    }
    wanted = Certificate(f"Modelplane gateways {number}", "authority", now - SKEW, now + AUTHORITY_VALID)
    return Issue(named, wanted)


def leaf(  # noqa: PLR0917 - a certificate is made of all of these
    metadata: Manifest, name: str, usage: Usage, trusted: Trust, now: datetime, cluster: str = HUB
) -> Issue:
    """The certificate of a gateway, with whom it trusts, as it is to be made now."""
    wanted = Certificate(name, usage, now - SKEW, now + VALID, trusted.signer, trusted.bundle)
    annotations = {labels.CERTIFICATE: _digest(name, usage, trusted), labels.RENEW_AFTER: _written(now + RENEWED)}
    return Issue({**metadata, "annotations": annotations}, wanted, cluster)


def is_current(secret: Manifest | None, wanted: Issue, now: datetime) -> bool:
    """Whether a Secret holds what is wanted of it and lasts; of Secrets elsewhere no more is known than metadata."""
    if secret is None or is_terminating(secret):
        return False
    live, asked = annotations_of(secret), wanted.metadata["annotations"]
    renew = _time(live.get(labels.RENEW_AFTER, ""))
    return live.get(labels.CERTIFICATE) == asked[labels.CERTIFICATE] and renew is not None and now < renew


def _signing(known: Sequence[Authority], now: datetime) -> Authority:
    """The newest that everybody has had the time to learn of; the oldest while there is none."""
    return next((one for one in reversed(known) if one.made + SIGNS <= now), known[0])


def _number(secret: Manifest) -> int | None:
    found = _NUMBERED.fullmatch(secret["metadata"]["name"])
    return int(found[1]) if found else None


def _digest(name: str, usage: Usage, trusted: Trust) -> str:
    said = "\n".join((name, usage, str(trusted.signer), trusted.bundle))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _written(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
