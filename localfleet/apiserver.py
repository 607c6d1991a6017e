"""One real API server, for tests that need nothing but an API.

with api_server() as server:
    subprocess.run([server.binaries["kubectl"], "--kubeconfig", server.kubeconfig, "get", "namespaces"])
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from localfleet import binaries, control_plane
from localfleet.control_plane import Layout
from localfleet.etcd import Etcd
from localfleet.network import free_ports
from localfleet.processes import Running, start

START_SECONDS = 60.0  # on an idle machine it takes about four
UNROUTABLE = "192.0.2.1"  # kept for documentation by RFC 5737: advertised, never reached


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server: reach it with the kubeconfig, which is the administrator's."""

    url: str
    kubeconfig: Path
    binaries: Mapping[str, Path]
    log: Path
    etcd: Etcd


@contextmanager
def api_server(*flags: str) -> Generator[ApiServer]:
    """Start etcd and kube-apiserver on loopback (building them first where needed); leave nothing behind."""
    programs = binaries.ensure("etcd", "kube-apiserver", "kubectl")
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="localfleet-api-"))
        undo.callback(shutil.rmtree, folder)
        layout = on_loopback(folder)
        undo.enter_context(etcd_running(layout, programs))
        undo.enter_context(api_running(layout, programs, *flags))
        yield ApiServer(layout.url, layout.kubeconfig, programs, layout.log("kube-apiserver"), Etcd(layout.etcd_port))


def on_loopback(folder: Path) -> Layout:
    port, etcd_port, peer_port = free_ports(3)
    return Layout("local", folder, "127.0.0.1", port, etcd_port, peer_port, advertised=UNROUTABLE)


@contextmanager
def etcd_running(layout: Layout, programs: Mapping[str, Path]) -> Generator[None]:
    etcd = start(control_plane.etcd(layout, programs), tied=True)
    try:
        etcd.wait_until(lambda: control_plane.etcd_healthy(layout), seconds=START_SECONDS, what="etcd to be healthy")
        yield
    finally:
        etcd.end()


@contextmanager
def api_running(layout: Layout, programs: Mapping[str, Path], *flags: str) -> Generator[None]:
    """An API server on a running etcd, which must outlive it: without it, it hangs when asked to end.

    No controllers run: nothing makes default service accounts, so the admission plugin that asks for them is off.
    """
    control_plane.write_credentials(layout)
    command = control_plane.api_server(layout, programs, "--disable-admission-plugins=ServiceAccount", *flags)
    server = start(command, tied=True)
    try:
        wait_for_api(server, layout)
        yield
    finally:
        server.end()


def wait_for_api(server: Running, layout: Layout) -> None:
    server.wait_until(
        lambda: control_plane.api_ready(layout),
        seconds=START_SECONDS,
        what=f"the API server of {layout.name} to be ready",
    )
