"""The clusters themselves: created, filled with images, and given the operator and its first objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml

from localfleet import binaries
from scripts.kind import charts, images
from scripts.kind.commands import KindError, run

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "kind"
VALUES = FOLDER / "values.yaml"
BROUGHT = "berlin"
"""What docs/install.md calls the cluster that it has one bring; here that is east."""
CONTEXTS = FOLDER / "install.kubeconfig"
"""For whoever types docs/install.md: its contexts, and west."""
SYSTEM, STORAGE, ENVOYS = "modelplane-system", "local-path-storage", "envoy-gateway-system"
PLATFORM = ROOT / "examples" / "kind" / "platform.yaml"
CHART = ROOT / "charts" / "modelplane-operator"
CONTROL_PLANE = "control-plane"
PASSING = (
    *("apiservices", "certificatesigningrequests", "componentstatuses", "controllerrevisions", "csinodes", "endpoints"),
    *("endpointslices", "events", "ipaddresses", "leases", "pods", "replicasets", "resourceslices"),
)
NODES_SECONDS, BRING_SECONDS, POLL_INTERVAL = 180, 600, 0.5


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster by kind."""

    name: str
    pools: Mapping[str, str] = field(default_factory=dict[str, str])
    """The pool of each node, by what follows the cluster's name in the node's."""

    @property
    def kind(self) -> str:
        """Its name for kind, which begins the names of its nodes."""
        return f"modelplane-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return FOLDER / f"{self.name}.kubeconfig"

    @property
    def bare(self) -> Path:
        """What was there before anything of ours, a line for each object."""
        return FOLDER / f"{self.name}.bare"

    @property
    def server(self) -> str:
        """Where pods of other clusters reach its API server."""
        return f"https://{self.kind}-control-plane:6443"

    def kubectl(self, *command: str, text: str | None = None) -> str:
        return run("kubectl", *command, text=text, kubeconfig=self.kubeconfig)

    def apply(self, *objects: dict[str, object]) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f-", text=listed(objects))

    def objects(self) -> list[str]:
        """What is there, by kind and name, but what Kubernetes makes of other objects or takes away in its own time."""
        kinds = self.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        asked = ",".join(kind for kind in kinds if kind.partition(".")[0] not in PASSING)
        line = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{'\\n'}{end}"
        return sorted(self.kubectl("get", asked, "--all-namespaces", "--ignore-not-found", "-o", line).splitlines())

    def create(self, image: str) -> None:
        """Make it and wait until its nodes are ready; nothing is done where it is there already."""
        if self.kind in existing():
            self.kubeconfig.write_text(run("kind", "get", "kubeconfig", "--name", self.kind))
            return
        workers = [{"role": "worker"} for node in self.pools if node != CONTROL_PLANE]
        nodes = [{"role": CONTROL_PLANE}, *workers]
        config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
        if workers:  # the cluster's own software runs beside its control plane, as where that is the only node
            config["kubeadmConfigPatches"] = ["kind: InitConfiguration\nnodeRegistration: {taints: []}\n"]
        file = FOLDER / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(config))
        where = (f"--name={self.kind}", f"--config={file}", f"--kubeconfig={self.kubeconfig}")
        self.bare.unlink(missing_ok=True)
        run("kind", "create", "cluster", *where, f"--wait={NODES_SECONDS}s", *([f"--image={image}"] if image else []))

    def delete(self) -> None:
        run("kind", "delete", "cluster", f"--name={self.kind}", f"--kubeconfig={self.kubeconfig}")


HUB = Cluster("hub")
EAST = Cluster("east", {CONTROL_PLANE: charts.REFERENCE_POOL, "worker": charts.POOL})
WEST = Cluster("west", {CONTROL_PLANE: charts.POOL})
WORKLOAD = (EAST, WEST)
EVERY = (HUB, *WORKLOAD)
PROXY = {"global": {"images": {"envoyProxy": {"image": f"docker.io/{images.ENVOY}"}}}}
COMPONENTS = [{"name": "envoy-gateway", "version": charts.ENVOY_GATEWAY_VERSION, "values": PROXY}]
"""Of a ServingStack: the Envoy Gateway and Envoy that there are."""
REFERENCE = {
    "name": charts.REFERENCE_DRIVER,
    "namespace": charts.REFERENCE_DRIVER,
    "chart": charts.REFERENCE_DRIVER,
    "repository": "https://charts.example.com",
    "version": "0.4.0",
}
"""Another driver of made-up devices, for the other pool of a cluster: the one that the reference's tests have."""


def existing() -> list[str]:
    return run("kind", "get", "clusters").split()


def listed(objects: Sequence[object]) -> str:
    return orjson.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).decode()


def create(image: str) -> None:
    """One after the other: kubeadm waits so long for a control plane that three at once may be too many."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for cluster in EVERY:
        cluster.create(image)


def load() -> None:
    images.load(images.ON_HUB, HUB.kind)
    images.load(images.ON_WORKERS, *(cluster.kind for cluster in WORKLOAD))
    for cluster in EVERY:  # by now it has all that it makes by itself
        if not cluster.bare.exists():
            cluster.bare.write_text("\n".join(cluster.objects()))


def mirror() -> None:
    """What the operator is installed with: charts where its pods find them, values that say so, and contexts."""
    CONTEXTS.write_text(contexts(**{"hub": HUB, BROUGHT: EAST, "west": WEST}))
    VALUES.write_text(charts.values())
    HUB.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    HUB.apply(*charts.config_maps(SYSTEM))


def install() -> None:
    """The operator, by its chart and the real Helm."""
    command = ("upgrade", "--install", "modelplane", str(CHART), f"--namespace={SYSTEM}", f"--values={VALUES}")
    run(helm(), *command, "--wait", "--timeout=5m", kubeconfig=HUB.kubeconfig)


def helm() -> Path:
    return binaries.ensure("helm")["helm"]


def contexts(**clusters: Cluster) -> str:
    """A kubeconfig that has each of them as the context of that name; the first is the current one."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": next(iter(clusters))}
    for part, single in (("clusters", "cluster"), ("users", "user")):
        merged[part] = [
            {"name": name, single: yaml.safe_load(cluster.kubeconfig.read_text())[part][0][single]}
            for name, cluster in clusters.items()
        ]
    merged["contexts"] = [{"name": name, "context": {"cluster": name, "user": name}} for name in clusters]
    return yaml.safe_dump(merged)


def share_volumes(cluster: Cluster) -> None:
    """Have kind's provisioner give volumes for many nodes, from one folder: right on a cluster of one node alone."""
    config = {"sharedFileSystemPath": "/var/local-path-provisioner"}
    patch = orjson.dumps({"data": {"config.json": orjson.dumps(config).decode()}}).decode()
    cluster.kubectl("patch", "configmap", "local-path-config", "-n", STORAGE, "--type=merge", f"--patch={patch}")
    cluster.kubectl("rollout", "restart", "deployment/local-path-provisioner", "-n", STORAGE)


def register(cluster: Cluster) -> None:
    """What docs/install.md has one do for a cluster: an account there, its kubeconfig on the hub, labelled nodes."""
    cluster.kubectl("apply", "-f", str(ROOT / "examples/access/with-helm.yaml"))
    script = ROOT / "examples" / "access" / "kubeconfig.sh"
    kubeconfig = run(script, cluster.server, "/dev/stdout", kubeconfig=cluster.kubeconfig)
    HUB.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{cluster.name}-kubeconfig", "namespace": SYSTEM},
            "stringData": {"kubeconfig": kubeconfig},
        }
    )
    for node, pool in cluster.pools.items():
        cluster.kubectl("label", "node", f"{cluster.kind}-{node}", f"modelplane.ai/pool={pool}", "--overwrite")


def bring() -> None:
    """The gateway, a class and both clusters, with what their stacks have otherwise here."""
    for cluster in WORKLOAD:
        register(cluster)
    share_volumes(WEST)
    HUB.kubectl("apply", "-f", str(PLATFORM))
    for cluster in WORKLOAD:
        choose_charts(cluster, cluster.name)
    for cluster in WORKLOAD:
        choose_envoy(cluster)


def adapt() -> None:
    """The same for the cluster that docs/install.md has one bring."""
    choose_charts(EAST, BROUGHT)
    choose_envoy(EAST)


def choose_charts(cluster: Cluster, name: str) -> None:
    """Have the stack of the InferenceCluster of that name take the charts that there are here."""
    stack = until(lambda: stack_of(name), f"the ServingStack of {name}", BRING_SECONDS)
    # Patched, as kubectl does not apply a part of one: `secrets` is the operator's, and every stack has to have it.
    HUB.kubectl("patch", "servingstack", stack, "-n", SYSTEM, "--type=merge", f"--patch={changed(cluster)}")


def changed(cluster: Cluster) -> str:
    more = {"extraCharts": [REFERENCE]} if charts.REFERENCE_POOL in cluster.pools.values() else {}
    return orjson.dumps({"spec": {"components": COMPONENTS, **more}}).decode()


def choose_envoy(cluster: Cluster) -> None:
    """Have the operator's EnvoyProxy leave the image to the chart's values, as it says nothing of it itself."""
    asked = ("get", "envoyproxies", "-n", SYSTEM, "-o", "name", "--ignore-not-found")
    until(lambda: there(cluster, *asked), f"the gateway of {cluster.name}", BRING_SECONDS)
    merged = '{"spec": {"mergeType": "StrategicMerge"}}'
    cluster.kubectl("patch", "envoyproxy", "inference-gateway", "-n", SYSTEM, "--type=merge", f"--patch={merged}")
    envoys = ("-n", ENVOYS, "--selector=gateway.envoyproxy.io/owning-gateway-name=inference-gateway")
    image = "jsonpath={.items[*].spec.template.spec.containers[*].image}"
    asked = ("get", "deployments", *envoys, "-o", image)
    until(lambda: there(cluster, *asked).partition(images.ENVOY)[1], f"the Envoy of {cluster.name}", BRING_SECONDS)
    cluster.kubectl("rollout", "status", "deployments", *envoys, f"--timeout={NODES_SECONDS}s")
    # One that waited for another image has no Envoy, and would be told to drain it for a quarter of an hour.
    cluster.kubectl("delete", "pods", *envoys, "--field-selector=status.phase=Pending", "--force", "--grace-period=0")


def there(cluster: Cluster, *command: str) -> str:
    """What it says; nothing while its kind is not known there."""
    try:
        return cluster.kubectl(*command)
    except KindError:
        return ""


def stack_of(name: str) -> str:
    owned = f'jsonpath={{.items[?(@.metadata.ownerReferences[0].name=="{name}")].metadata.name}}'
    return there(HUB, "get", "servingstacks", "-n", SYSTEM, "-o", owned)


def until(look: Callable[[], str], what: str, seconds: float = 60.0) -> str:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise KindError(f"waited {seconds:g} s for {what}, in vain")
        time.sleep(POLL_INTERVAL)
    return found


def wait(*command: str, seconds: int) -> None:
    HUB.kubectl("wait", f"--timeout={seconds}s", *command)
