"""Bring up the local fleet, install our kinds on its hub, apply the examples, and show what there is.

The fleet stays up; `make demo-down` ends it. What is up already is used as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localfleet import binaries

ROOT = Path(__file__).resolve().parent.parent
NAMESPACES = ("ml-team", "platform")

REFUSED = """
apiVersion: modelplane.ai/v1alpha1
kind: ModelDeployment
metadata: {name: refused, namespace: ml-team}
spec:
  replicas: 1
  template:
    spec:
      tolerations: [{}]
      engines:
      - name: vllm
        members:
        - template: {spec: {containers: [{name: main, image: vllm}]}}
"""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is done, and how long it took."""
    print(f"\n== {what}", flush=True)
    began = time.monotonic()
    yield
    print(f"   {time.monotonic() - began:.1f} s", flush=True)


def localfleet(*arguments: str) -> str:
    """What a command of the fleet prints; its progress goes to the terminal."""
    command = [sys.executable, "-m", "localfleet", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.strip()


class Cluster:
    """kubectl on one cluster of the fleet."""

    def __init__(self, name: str) -> None:
        self.kubeconfig = localfleet("kubeconfig", name)
        self._kubectl = binaries.ensure("kubectl")["kubectl"]

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        command = [str(self._kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        ran = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if check and ran.returncode:
            sys.exit(f"demo: kubectl {' '.join(arguments)} failed:\n{ran.stderr}")
        return (ran.stdout + ran.stderr).strip()

    def show(self, *arguments: str) -> None:
        print(f"$ kubectl {' '.join(arguments)}\n{self.kubectl(*arguments)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="how many workload clusters (default: %(default)s)")
    workers = parser.parse_args().workers
    began = time.monotonic()

    with step(f"a fleet: a hub and {workers} workload clusters"):
        print(localfleet("up", "--workers", str(workers)))
    hub, worker = Cluster("hub"), Cluster("worker-1")
    with step("our kinds, on the hub"):
        hub.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        hub.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        hub.show("api-resources", "--categories=modelplane")
    with step("the examples: classes, clusters, models, services"):
        for namespace in NAMESPACES:
            hub.kubectl(
                "apply", "-f", "-", stdin=f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}"
            )
        hub.kubectl("apply", "--server-side", "--recursive", "-f", str(ROOT / "examples"))
        hub.show("get", "icl,ic,ig")
        hub.show("get", "md,ms,mc,me", "-n", "ml-team")
    with step("a deployment with three mistakes, and what is said to its author"):
        print(hub.kubectl("apply", "-f", "-", stdin=REFUSED, check=False))
    with step("what a workload cluster offers: GPUs as Kubernetes itself sees them"):
        worker.show("get", "nodes", "-L", "modelplane.ai/pool")
        worker.show("get", "resourceslices")

    print(
        f"\nUp in {time.monotonic() - began:.0f} s. Nothing acts on the objects yet: the operator is the next step.\n"
        "Try:\n"
        f"  export KUBECONFIG={hub.kubeconfig}\n"
        "  kubectl explain modeldeployment.spec.template.spec.engines\n"
        "  kubectl scale md/qwen3-8b -n ml-team --replicas=0\n"
        "  .venv/bin/python -m localfleet --help\n"
        "  make demo-down"
    )


if __name__ == "__main__":
    main()
