"""Certificates of one cluster, and the kubeconfig files made with them.

Kubernetes reads who you are from a client certificate: its common name is the user, its organisation the group.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import trustme
import yaml

ADMIN_GROUP = "system:masters"  # bound to cluster-admin in every API server


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that can vouch for servers and for users."""

    ca: trustme.CA

    @classmethod
    def new(cls) -> Authority:
        return cls(trustme.CA(key_type=trustme.KeyType.ECDSA))

    @classmethod
    def load(cls, folder: Path) -> Authority:
        return cls(trustme.CA.from_pem((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes()))

    def save(self, folder: Path) -> None:
        write(folder / "ca.crt", self.certificate)
        write(folder / "ca.key", self.ca.private_key_pem.bytes())

    @property
    def certificate(self) -> bytes:
        return self.ca.cert_pem.bytes()

    def server(self, *names: str) -> Identity:
        """A server under these host names and addresses."""
        return identity(self.ca.issue_cert(*names, key_type=trustme.KeyType.ECDSA))

    def user(self, name: str, group: str = ADMIN_GROUP) -> Identity:
        """A Kubernetes user of a group."""
        # The host name is never looked at, but a certificate with an empty list of them is refused.
        leaf = self.ca.issue_cert(
            "user.invalid", common_name=name, organization_name=group, key_type=trustme.KeyType.ECDSA
        )
        return identity(leaf)


def identity(leaf: trustme.LeafCert) -> Identity:
    return Identity(b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes())


def kubeconfig(*, cluster: str, server: str, authority: bytes, user: Identity) -> str:
    """A kubeconfig file that needs no other file, for one user of one cluster."""

    def encoded(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": cluster,
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
            "clusters": [
                {"name": cluster, "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}
            ],
            "users": [
                {
                    "name": cluster,
                    "user": {
                        "client-certificate-data": encoded(user.certificate),
                        "client-key-data": encoded(user.key),
                    },
                }
            ],
        },
        sort_keys=False,
    )


def write(path: Path, content: bytes | str) -> Path:
    """Replace a file that may hold secrets: readable by its owner only, and never half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return partial.rename(path)
