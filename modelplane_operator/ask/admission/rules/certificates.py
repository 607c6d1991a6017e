"""Rotate the certificates of the admission webhook, which API servers trust by the webhook's configuration.

Each certificate is in a numbered Secret of its own that is created once and never changed. It is self-signed, and
the configuration trusts all existing ones. So a new one is trusted long before it is presented, and an old one as
long as it may be presented: no request fails during a rotation.

Each certificate also defines a secret URL path. An answer describes the whole hub, and the port is open to every
pod there, because the addresses of API servers are not known in advance.

    REPLACED    the age of the newest certificate at which another is created
    SHOWN       the time for which it is trusted before every operator presents it
    KEPT        the time after that until older ones are deleted
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
"""Validity of a certificate."""
REPLACED: Final = timedelta(days=60)
"""Age of the newest certificate at which another is created."""
USED_AFTER: Final = timedelta(days=1)
"""Time between the creation of a certificate and its use."""
DELETED_AFTER: Final = timedelta(days=1)
"""Time between the use of a certificate and the deletion of older ones."""

_SECRET_NAME = re.compile(rf"{re.escape(names.ADMISSION_CERTIFICATE)}-([0-9]{{1,9}})")
"""Form of a Secret's name."""


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate with its key, as its Secret stores it."""

    number: int
    """Number in the Secret's name; higher ones are newer."""
    secret: Key
    """Key of the Secret."""
    uid: str
    made: datetime
    """Time of creation, by the Secret's annotation."""
    certificate: str
    """Certificate in PEM."""
    key: str
    """Private key in PEM."""

    @property
    def path(self) -> str:
        """URL path of the webhook, known only to readers of the configuration or of the key."""
        return f"/{hmac.digest(self.key.encode(), b'the path of the admission webhook', 'sha256').hex()}"


def read_certificates(secrets: Iterable[Manifest]) -> Sequence[ServingCertificate]:
    """Return the certificates in these Secrets, the oldest first. Unreadable ones are left out."""
    certificates = (_parse_secret(item) for item in secrets if not is_terminating(item))
    return sorted(filter(None, certificates), key=lambda item: item.number)


def in_use(certificates: Sequence[ServingCertificate], now: datetime) -> ServingCertificate | None:
    """Return the newest certificate that API servers have had time to trust, or else the oldest one."""
    return next(
        (certificate for certificate in reversed(certificates) if certificate.made + USED_AFTER <= now),
        next(iter(certificates), None),
    )


def bundle(certificates: Sequence[ServingCertificate]) -> str:
    """Return the certificates that API servers must trust, in the form of their configuration."""
    return base64.b64encode("".join(item.certificate for item in certificates).encode()).decode()


@dataclass(frozen=True, slots=True)
class Rotation:
    """A certificate to create and certificates to delete."""

    make: Issue | None
    """The certificate to create, or None. It is only created, so two leaders cannot replace each other's."""
    drop: tuple[ServingCertificate, ...]
    """Certificates to delete."""


def rotation(secrets: Sequence[Manifest], name: str, now: datetime) -> Rotation:
    """Return what to create and delete now. `name` is the webhook's host name, which the certificates are for."""
    existing = read_certificates(secrets)
    current = in_use(existing, now)
    is_stable = current is not None and current.made + USED_AFTER + DELETED_AFTER <= now
    drop = tuple(item for item in existing if current and item.number < current.number) if is_stable else ()
    if existing and now < existing[-1].made + REPLACED:
        return Rotation(None, drop)
    number = (
        max((existing_number for item in secrets if (existing_number := _parse_number(item)) is not None), default=0)
        + 1
    )
    metadata = {
        "name": f"{names.ADMISSION_CERTIFICATE}-{number}",
        "namespace": names.SYSTEM_NAMESPACE,
        "annotations": {labels.MADE: now.strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    return Rotation(Issue(metadata, Certificate(name, "server", now - SKEW, now + VALID)), drop)


def read_client_authorities(
    configuration: Manifest, clients: Sequence[ServingCertificate], now: datetime
) -> Manifest | None:
    """Return the webhook's configuration with the current trust bundle and path; None if it is up to date."""
    current = in_use(clients, now)
    if current is None:
        return None
    hooks = entries(configuration, "webhooks")
    changed = [
        {**hook, "clientConfig": _client_config(section(hook, "clientConfig"), clients, current.path)} for hook in hooks
    ]
    return {**configuration, "webhooks": changed} if changed != hooks else None


def _client_config(config: Section, certificates: Sequence[ServingCertificate], path: str) -> Manifest:
    """Return a hook's `clientConfig` with the current trust bundle and path."""
    endpoint: Manifest = {"service": {**section(config, "service"), "path": path}}
    if url := str(config.get("url", "")):
        endpoint = {"url": urljoin(url, path)}
    return {**config, **endpoint, "caBundle": bundle(certificates)}


def _parse_secret(secret: Manifest) -> ServingCertificate | None:
    """Return the certificate in a Secret; None if it is malformed."""
    if (number := _parse_number(secret)) is None:
        return None
    data = section(secret, "data")
    try:
        created = datetime.fromisoformat(annotations_of(secret).get(labels.MADE, ""))
        certificate, key = (base64.b64decode(data[name], validate=True).decode("ascii") for name in _DATA_KEYS)
    except (KeyError, ValueError):
        return None
    if created.tzinfo is None or not certificate.startswith("-----BEGIN CERTIFICATE-----"):
        return None
    return ServingCertificate(number, key_of(secret), secret["metadata"]["uid"], created, certificate, key)


_DATA_KEYS = ("tls.crt", "tls.key")
"""Keys of a TLS Secret."""


def _parse_number(secret: Manifest) -> int | None:
    """Return the number in a Secret's name; None if it is not one of the webhook's."""
    match = _SECRET_NAME.fullmatch(secret["metadata"]["name"])
    return int(match[1]) if match else None
