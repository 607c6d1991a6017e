"""The certificates by which API servers know the admission webhook: whose turn it is, and when another is made.

Each is in a Secret of its own, numbered, made once and never changed; it signs itself, and the webhook's configuration
trusts all that there are. So a new one is trusted long before anything shows it, and an old one for as long as anything
might: no request is refused while they change.

Each also stands for a path to ask at. Nobody else knows it: an answer tells of the whole hub, and the port is open to
every pod there, as nobody knows beforehand whence API servers ask.

    REPLACED    the newest is so old: another one is made
    SHOWN       it is trusted for so long, then every operator shows it
    KEPT        so long after that the ones before it go
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urljoin

from kubeloop.certificate import Certificate
from kubeloop.objects import Key, Manifest, Section, annotations_of, entries, is_terminating, key_of, section
from kubeloop.plan import Issue
from modelplane_operator.api import labels, names
from modelplane_operator.routing.gateway.certificates import SKEW

VALID: Final = timedelta(days=90)
REPLACED: Final = timedelta(days=60)
SHOWN: Final = timedelta(days=1)
KEPT: Final = timedelta(days=1)

_NUMBERED = re.compile(rf"{re.escape(names.ADMISSION_CERTIFICATE)}-([0-9]{{1,9}})")


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate that was made, with its key."""

    number: int
    secret: Key
    uid: str
    made: datetime
    certificate: str
    key: str

    @property
    def path(self) -> str:
        """Where API servers ask: known to whoever may read the webhook's configuration, or the key."""
        return f"/{hmac.digest(self.key.encode(), b'the path of the admission webhook', 'sha256').hex()}"


def known(secrets: Iterable[Manifest]) -> Sequence[Shown]:
    """Those that the Secrets hold, the oldest first; what cannot be read is none."""
    found = (_read(one) for one in secrets if not is_terminating(one))
    return sorted(filter(None, found), key=lambda one: one.number)


def in_use(there: Sequence[Shown], now: datetime) -> Shown | None:
    """The newest that API servers have had the time to trust; the oldest while there is none of these."""
    return next((one for one in reversed(there) if one.made + SHOWN <= now), next(iter(there), None))


def bundle(there: Sequence[Shown]) -> str:
    """What API servers trust, as their configuration has it."""
    return base64.b64encode("".join(one.certificate for one in there).encode()).decode()


@dataclass(frozen=True, slots=True)
class Rotation:
    """What the leader is to do."""

    make: Issue | None
    """Two leaders that do it at once make one certificate: it is only created."""
    drop: tuple[Shown, ...]


def rotation(secrets: Sequence[Manifest], name: str, now: datetime) -> Rotation:
    """`name`: what API servers call the webhook, which the certificates prove it to be."""
    there = known(secrets)
    shown = in_use(there, now)
    over = shown is not None and shown.made + SHOWN + KEPT <= now
    drop = tuple(one for one in there if shown and one.number < shown.number) if over else ()
    if there and now < there[-1].made + REPLACED:
        return Rotation(None, drop)
    number = max((found for one in secrets if (found := _number(one)) is not None), default=0) + 1
    metadata = {
        "name": f"{names.ADMISSION_CERTIFICATE}-{number}",
        "namespace": names.SYSTEM_NAMESPACE,
        "annotations": {labels.MADE: now.strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    return Rotation(Issue(metadata, Certificate(name, "server", now - SKEW, now + VALID)), drop)


def asking(configuration: Manifest, there: Sequence[Shown], now: datetime) -> Manifest | None:
    """The webhook's configuration with whom to trust, and where to ask; None when it says so."""
    shown = in_use(there, now)
    if shown is None:
        return None
    hooks = entries(configuration, "webhooks")
    changed = [{**hook, "clientConfig": _client(section(hook, "clientConfig"), there, shown.path)} for hook in hooks]
    return {**configuration, "webhooks": changed} if changed != hooks else None


def _client(config: Section, there: Sequence[Shown], path: str) -> Manifest:
    where: Manifest = {"service": {**section(config, "service"), "path": path}}
    if url := str(config.get("url", "")):
        where = {"url": urljoin(url, path)}
    return {**config, **where, "caBundle": bundle(there)}


def _read(secret: Manifest) -> Shown | None:
    if (number := _number(secret)) is None:
        return None
    data = section(secret, "data")
    try:
        made = datetime.fromisoformat(annotations_of(secret).get(labels.MADE, ""))
        certificate, key = (base64.b64decode(data[name], validate=True).decode("ascii") for name in _PARTS)
    except (KeyError, ValueError):
        return None
    if made.tzinfo is None or not certificate.startswith("-----BEGIN CERTIFICATE-----"):
        return None
    return Shown(number, key_of(secret), secret["metadata"]["uid"], made, certificate, key)


_PARTS = ("tls.crt", "tls.key")


def _number(secret: Manifest) -> int | None:
    found = _NUMBERED.fullmatch(secret["metadata"]["name"])
    return int(found[1]) if found else None
