"""The programs of one control plane and the flags they get: the same ones for a lone API server and for a fleet."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from localfleet.pki import ADMIN_GROUP, Authority, kubeconfig, write
from localfleet.processes import Command


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one control plane lives: its folder, and the addresses its servers listen on."""

    name: str
    folder: Path
    address: str  # of the API server
    port: int
    etcd_port: int
    peer_port: int
    advertised: str  # never loopback: the API server refuses that
    service_range: str = "10.0.0.0/24"

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    def log(self, component: str) -> Path:
        return self.folder / "logs" / f"{component}.log"


def write_credentials(layout: Layout, *names: str) -> None:
    """Make the cluster's authority, its server's certificate (also for `names`), signing key and admin kubeconfig."""
    authority = Authority.new()
    server = authority.server(layout.address, "127.0.0.1", "localhost", "kubernetes.default.svc", *names)
    signer = authority.server("service-accounts")
    authority.save(layout.pki)
    # Users are vouched for by a second authority, so that their certificates can be revoked without the components'.
    write(layout.pki / "clients.crt", authority.certificate)
    for name, content in {
        "server.crt": server.certificate,
        "server.key": server.key,
        "service-accounts.key": signer.key,
    }.items():
        write(layout.pki / name, content)
    write(
        layout.kubeconfig,
        kubeconfig(
            cluster=layout.name,
            server=layout.url,
            authority=authority.certificate,
            user=authority.user("admin", ADMIN_GROUP),
        ),
    )


def etcd(layout: Layout, binaries: Mapping[str, Path]) -> Command:
    client, peer = f"http://127.0.0.1:{layout.etcd_port}", f"http://127.0.0.1:{layout.peer_port}"
    return Command(
        "etcd",
        [
            binaries["etcd"],
            f"--data-dir={layout.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data need not survive the machine, and a disk flush costs more than the write
            "--snapshot-count=10000",  # keeps fewer past writes in memory than the default
            "--log-level=warn",
        ],
        layout.log("etcd"),
    )


def api_server(layout: Layout, binaries: Mapping[str, Path], *flags: str) -> Command:
    return Command(
        "kube-apiserver",
        [
            binaries["kube-apiserver"],
            f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
            f"--bind-address={layout.address}",
            f"--secure-port={layout.port}",
            f"--advertise-address={layout.advertised}",
            "--endpoint-reconciler-type=none",  # nobody reads the endpoints of `kubernetes`, and it delays shutdown
            f"--tls-cert-file={layout.pki / 'server.crt'}",
            f"--tls-private-key-file={layout.pki / 'server.key'}",
            f"--client-ca-file={layout.pki / 'clients.crt'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={layout.pki / 'service-accounts.key'}",
            f"--service-account-signing-key-file={layout.pki / 'service-accounts.key'}",
            f"--service-cluster-ip-range={layout.service_range}",
            "--authorization-mode=RBAC",
            "--profiling=false",
            *flags,
        ],
        layout.log("kube-apiserver"),
    )


def etcd_healthy(layout: Layout) -> bool:
    return answers_ok(f"http://127.0.0.1:{layout.etcd_port}/health", None)


def api_ready(layout: Layout) -> bool:
    """Whether the API server says that it is ready, all its start-up hooks included."""
    trust = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    return answers_ok(f"{layout.url}/readyz", trust)


def answers_ok(url: str, trust: ssl.SSLContext | None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=trust) as reply:  # noqa: S310 - the URL is ours
            return reply.status == HTTPStatus.OK
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
