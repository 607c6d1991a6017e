"""Envoy Gateway outside of any cluster: two processes of this machine that obey an API server.

It is the very program that workload clusters run, in the mode where it starts its Envoy itself, and not as a pod. Its
ports are fixed, so it has a network of its own (`enclosure.py`). A root folder of its own gives it the names that it
resolves and the authorities that it trusts.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from localfleet import binaries
from localfleet.cloud.pods import FROM_THE_MACHINE, mounted
from localfleet.enclosure import Address, enclosure
from localfleet.processes import Command, Running, start

CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
OF_ITS_OWN = "/etc/ssl"
ENVOY_VERSION = next(tool.version for tool in binaries.TOOLS if tool.name == "envoy")
HOME = "/home"
NAMESPACE = "envoy-gateway-system"


@contextmanager
def envoy_gateway(
    kubeconfig: Path,
    folder: Path,
    ports: Sequence[int],
    reached: Sequence[Address],
    *,
    hosts: str = "",
    authorities: Path | None = None,
) -> Generator[Running]:
    """Run it in a folder, for listeners on these ports and backends at these addresses of this machine.

    `hosts` are lines of its hosts file, `authorities` the certificates that its Envoy trusts.
    """
    tools = binaries.ensure("envoy-gateway", "envoy")
    root = folder / "root"
    envoy = f"{HOME}/versions/{ENVOY_VERSION}/bin/envoy"
    _write(root / "etc" / "hosts", f"127.0.0.1 localhost\n{hosts}")
    _write(root / "etc" / "resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    _write(root / "etc" / "passwd", "root:x:0:0:root:/:/bin/sh\n")
    _write(root / "etc" / "ssl" / "certs" / "ca-certificates.crt", authorities.read_text() if authorities else "")
    _write(root / "etc" / "envoy-gateway.yaml", json.dumps(_configuration()))
    shutil.copy(kubeconfig, root / "etc" / "kubeconfig")
    binds = {name: name for name in FROM_THE_MACHINE if name != OF_ITS_OWN and Path(name).exists()}
    binds |= {str(tools["envoy-gateway"]): "/envoy-gateway", str(tools["envoy"]): envoy}
    lines = [mounted(Path(source), root, target) for source, target in binds.items()]
    (root / "tmp").mkdir()
    (root / "certs").symlink_to(f"{HOME}/certs/envoy-gateway")  # where it looks although it puts them elsewhere
    inside = f"exec /usr/sbin/chroot {shlex.quote(str(root))} /envoy-gateway"
    lines += [
        f"({inside} certgen --local --config-home={HOME})",
        f"({inside} certgen --disable-topology-injector)",
        f"{inside} server --config-path=/etc/envoy-gateway.yaml",
    ]
    server: str = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    api = urlsplit(server)
    environment = {"KUBECONFIG": "/etc/kubeconfig", "HOME": HOME, "ENVOY_GATEWAY_NAMESPACE": NAMESPACE}
    environment |= {"ENVOY_VERSION": ENVOY_VERSION}
    with enclosure([(str(api.hostname), api.port or 443), *reached], ports) as own:
        command = own.inside(["unshare", "--mount", "sh", "-ec", "\n".join(lines)])
        running = start(Command("envoy-gateway", command, folder / "envoy-gateway.log", environment), tied=True)
        try:
            yield running
        finally:
            running.end()


def stand_in(kubectl: Path, kubeconfig: Path, *, gateway: str, namespace: str, address: str) -> None:
    """Make what Kubernetes would, for a Gateway to have an address: the namespace has to be there."""
    owner = {"owning-gateway-name": gateway, "owning-gateway-namespace": namespace}
    labels = {f"gateway.envoyproxy.io/{key}": value for key, value in owner.items()}
    metadata = {"name": gateway, "namespace": NAMESPACE, "labels": labels}
    pod = {"metadata": {"labels": owner}, "spec": {"containers": [{"name": "envoy", "image": "envoy"}]}}
    envoys = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    balancer = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    specs = [
        {**envoys, "spec": {"selector": {"matchLabels": owner}, "template": pod}},
        {**balancer, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}},
    ]
    replicas = dict.fromkeys(("replicas", "availableReplicas", "readyReplicas", "updatedReplicas"), 1)
    statuses = [
        {**envoys, "status": replicas},
        {**balancer, "status": {"loadBalancer": {"ingress": [{"ip": address}]}}},
    ]
    for manifests, subresource in ((specs, []), (statuses, ["--subresource=status"])):
        command = [kubectl, f"--kubeconfig={kubeconfig}", "apply", "--server-side", *subresource, "-f", "-"]
        whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        subprocess.run(command, input=whole, text=True, check=True, capture_output=True)


def _configuration() -> dict[str, object]:
    homes = dict.fromkeys(("configHome", "dataHome", "stateHome", "runtimeDir"), HOME)
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyGateway",
        "gateway": {"controllerName": CONTROLLER},
        "provider": {
            "type": "Custom",
            "custom": {
                "resource": {"type": "Kubernetes", "kubernetes": {"leaderElection": {"disable": True}}},
                "infrastructure": {"type": "Host", "host": homes},
            },
        },
        "extensionApis": {"enableBackend": True},
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
