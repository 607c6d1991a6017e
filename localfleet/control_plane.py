"""The programs of one control plane and the flags they get: the same ones for a lone API server and for a fleet."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from localfleet.pki import Authority, kubeconfig, write
from localfleet.processes import Command

AUDIT_POLICY, AUDIT_LOG = "audit-policy.yaml", "audit.jsonl"
REVIEWER = "reviewer.yaml"


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
    service_range: str = "10.0.0.0/16"  # a benchmark plays a thousand clusters on one API server

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


def write_credentials(layout: Layout) -> None:
    """Make the cluster's authority, its server's certificate, its signing key and the administrator's kubeconfig."""
    authority = Authority.new()
    authority.save(layout.pki / "ca")
    server = authority.server(layout.address, "127.0.0.1", "localhost", "kubernetes.default.svc")
    write(layout.pki / "server.crt", server.certificate)
    write(layout.pki / "server.key", server.key)
    write(layout.pki / "service-accounts.key", authority.server("service-accounts").key)
    renew_users(layout)
    write(layout.kubeconfig, kubeconfig_for(layout, authority, "admin"))


def kubeconfig_for(layout: Layout, vouching: Authority, user: str, server: str | None = None) -> str:
    return kubeconfig(
        cluster=layout.name,
        server=server or layout.url,
        authority=(layout.pki / "ca" / "ca.crt").read_bytes(),
        user=vouching.user(user),
    )


def renew_users(layout: Layout) -> Authority:
    """A new authority for the kubeconfigs that the fleet hands out: those of the one before are refused from now on.

    The API server reads the file again when it changes; the fleet's own components are vouched for by the cluster's
    authority, and never notice.
    """
    users = Authority.new()
    components = (layout.pki / "ca" / "ca.crt").read_bytes()
    write(layout.pki / "clients.crt", components + users.certificate)
    return users


def expire_users(layout: Layout) -> None:
    """Refuse every kubeconfig that the fleet has handed out for this cluster."""
    write(layout.pki / "clients.crt", (layout.pki / "ca" / "ca.crt").read_bytes())


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


def write_audit_policy(layout: Layout) -> None:
    (layout.folder / AUDIT_POLICY).write_text(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"
    )


def audit_flags(layout: Layout) -> tuple[str, ...]:
    """What has an API server write down every request: one JSON object a line, without content."""
    return (
        f"--audit-policy-file={layout.folder / AUDIT_POLICY}",
        f"--audit-log-path={layout.folder / AUDIT_LOG}",
    )


def write_token_webhook(layout: Layout, url: str) -> None:
    """Whom the API server asks whose token one is that it does not know."""
    asked = {"name": "reviewer", "cluster": {"server": url}}
    said: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [asked],
        "contexts": [{"name": "reviewer", "context": {"cluster": "reviewer", "user": "api-server"}}],
        "current-context": "reviewer",
        "users": [{"name": "api-server", "user": {}}],
    }
    (layout.folder / REVIEWER).write_text(json.dumps(said))


def token_webhook_flags(layout: Layout) -> tuple[str, ...]:
    return (
        f"--authentication-token-webhook-config-file={layout.folder / REVIEWER}",
        "--authentication-token-webhook-version=v1",
        "--authentication-token-webhook-cache-ttl=5s",
    )


def controller_manager(layout: Layout, binaries: Mapping[str, Path]) -> Command:
    return Command(
        "kube-controller-manager",
        [
            binaries["kube-controller-manager"],
            f"--kubeconfig={layout.kubeconfig}",
            f"--root-ca-file={layout.pki / 'ca' / 'ca.crt'}",
            f"--service-account-private-key-file={layout.pki / 'service-accounts.key'}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--profiling=false",
        ],
        layout.log("kube-controller-manager"),
    )


def scheduler(layout: Layout, binaries: Mapping[str, Path]) -> Command:
    return Command(
        "kube-scheduler",
        [
            binaries["kube-scheduler"],
            f"--kubeconfig={layout.kubeconfig}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--profiling=false",
        ],
        layout.log("kube-scheduler"),
    )


def etcd_healthy(layout: Layout) -> bool:
    return answers_ok(f"http://127.0.0.1:{layout.etcd_port}/health", None)


def api_ready(layout: Layout) -> bool:
    """Whether the API server says that it is ready, all its start-up hooks included."""
    trust = ssl.create_default_context(cafile=str(layout.pki / "ca" / "ca.crt"))
    return answers_ok(f"{layout.url}/readyz", trust)


def answers_ok(url: str, trust: ssl.SSLContext | None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=trust) as reply:  # noqa: S310 - the URL is ours
            return reply.status == HTTPStatus.OK
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
