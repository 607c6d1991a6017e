"""Generates keys and certificates. A key is generated when it is stored, so that no plan, log or status contains it."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
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
    is_authority = desired.usage == "authority"
    purpose = _PURPOSE.get(desired.usage)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(desired.since)
        .not_valid_after(desired.until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(_key_usage(signs=is_authority), critical=True)
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


def _read_authority(authority: Manifest) -> tuple[ec.EllipticCurvePrivateKey, x509.Name]:
    """Return the key and the name of an authority; raises UnusableAuthorityError."""
    data = section(authority, "data")
    try:
        key = load_pem_private_key(base64.b64decode(data["tls.key"]), password=None)
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    except (KeyError, ValueError, TypeError):
        key = certificate = None  # the error may quote the key
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate is None:
        message = f"Secret {key_of(authority)} holds no authority: delete it, and another one is made"
        raise UnusableAuthorityError(message)
    return key, certificate.subject


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
