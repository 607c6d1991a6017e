"""Generates keys and certificates. A key is generated when it is stored, so that no plan, log or status contains it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeloop.certificate import Certificate, Usage
from kubeloop.errors import ClientError
from kubeloop.objects import Manifest, key_of, section

_PURPOSE: Mapping[Usage, x509.ObjectIdentifier] = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}


class UnusableAuthorityError(ClientError):
    """A Secret that should sign has no key and certificate of an authority. The message quotes neither."""

    retry = False


def secret_data(desired: Certificate, authority: Manifest | None) -> Mapping[str, str]:
    """Return the content of a Secret of type `kubernetes.io/tls`: a new key and a certificate for it.

    `authority` is the Secret that signs; None for a self-signed certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, desired.name[:64])])  # the maximum length
    signer, issuer = _read_authority(authority) if authority is not None else (key, subject)
    signs = desired.usage == "authority"
    purpose = _PURPOSE.get(desired.usage)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(desired.since)
        .not_valid_after(desired.until)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(_key_usage(signs=signs), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if purpose is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        names = x509.SubjectAlternativeName([x509.DNSName(desired.name)])
        builder = builder.add_extension(names, critical=False)
    certificate = builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    trusted = {"ca.crt": desired.trusted.encode()} if desired.trusted else {}
    content = {"tls.crt": certificate, "tls.key": private, **trusted}
    return {name: base64.b64encode(value).decode() for name, value in content.items()}


def is_authority(secret: Manifest) -> bool:
    """True if a Secret has the certificate of an authority and the key that belongs to it."""
    try:
        _read_authority(secret)
    except UnusableAuthorityError:
        return False
    return True


def find_fault(secret: Manifest, desired: Certificate, authority: Manifest, now: datetime) -> str:
    """Return why a Secret does not hold a certificate as desired, with its key; empty if it does.

    `authority` is the Secret of the signer. The key is part of no answer.
    """
    pair = _read_pair(secret)
    signer = _read_pair(authority)
    if pair is None:
        return "its certificate and key cannot be read, or do not belong together"
    _, certificate = pair
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        proven = names.get_values_for_type(x509.DNSName)
        if signer is not None:
            certificate.verify_directly_issued_by(signer[1])
    except x509.ExtensionNotFound:
        proven = []
    except (InvalidSignature, ValueError, TypeError):
        return f"its certificate is not signed by the authority in Secret {key_of(authority)}"
    if desired.name not in proven:
        return f"its certificate does not prove the name {desired.name}"
    if certificate.not_valid_after_utc <= now:
        return "its certificate has expired"
    if section(secret, "data").get("ca.crt") != base64.b64encode(desired.trusted.encode()).decode():
        return "its ca.crt does not have the authorities that the operator trusts"
    return ""


def _read_authority(authority: Manifest) -> tuple[ec.EllipticCurvePrivateKey, x509.Name]:
    """Return the key and the name of an authority; raises UnusableAuthorityError."""
    pair = _read_pair(authority)
    if pair is None or not isinstance(pair[0], ec.EllipticCurvePrivateKey):
        message = (
            f"Secret {key_of(authority)} holds no certificate authority: delete it, and the operator creates"
            " another one"
        )
        raise UnusableAuthorityError(message)
    return pair[0], pair[1].subject


def _read_pair(secret: Manifest) -> tuple[PrivateKeyTypes, x509.Certificate] | None:
    """Return the key and the certificate in a Secret; None if they cannot be read or do not belong together."""
    data = section(secret, "data")
    try:
        key = load_pem_private_key(base64.b64decode(data["tls.key"]), password=None)
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
        return (key, certificate) if key.public_key() == certificate.public_key() else None
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm):
        return None  # the error may quote the key


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key usage extension of an authority, or of a server or client."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
