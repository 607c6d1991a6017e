"""The fleet as its users meet it: real schedulers, real gateways, real faults."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localfleet import control
from localfleet.errors import FleetError
from localfleet.fleet import Fleet, Options
from localfleet.network import Direction
from localfleet.waiting import until

pytestmark = pytest.mark.fleet

WORKER = "worker-1"


def get(fleet: Fleet, cluster: str, *what: str) -> Any:
    return json.loads(fleet.kubectl(cluster, "get", *what, "-o", "json"))


def apply(fleet: Fleet, cluster: str, namespace: str, *manifests: dict[str, Any]) -> None:
    documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    fleet.kubectl(cluster, "--namespace", namespace, "apply", "-f-", documents=documents)


def condition(manifest: dict[str, Any], kind: str) -> str | None:
    conditions = manifest.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), None)


def wait(fact: Callable[[], bool], what: str, seconds: float = 180) -> None:
    until(lambda: fact() or None, seconds=seconds, what=what, interval=0.5)  # most facts take a kubectl


def answers(fleet: Fleet, cluster: str) -> bool:
    try:
        fleet.kubectl(cluster, "get", "--raw", "/readyz", "--request-timeout=2s")
    except FleetError:
        return False
    return True


def engines(namespace: str, devices: int = 4) -> list[dict[str, Any]]:
    """A model server of two replicas that claims Hopper GPUs, and its Service."""
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": "gpu.nvidia.com",
            "count": devices,
            "selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}}],
        },
    }
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.11.0",
        "args": ["--model", "Qwen/Qwen3-8B"],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
        "resources": {"claims": [{"name": "gpus"}]},
    }
    pod = {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}],
        "containers": [container],
    }
    labels = {"app": "engine"}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpus"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "engine"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "engine"},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 8000}]},
        },
    ]


def gateway(name: str, gateway_class: str, controller: str, port: int) -> list[dict[str, Any]]:
    listener = {"name": "http", "port": port, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": gateway_class},
            "spec": {"controllerName": controller},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": name},
            "spec": {"gatewayClassName": gateway_class, "listeners": [listener]},
        },
    ]


def route(parent: str, path: str, rewritten: str, backend: tuple[str, int], *, per_backend: bool) -> dict[str, Any]:
    rewrite = {
        "type": "URLRewrite",
        "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": rewritten}},
    }
    name, port = backend
    filters = {"filters": [rewrite]}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "route"},
        "spec": {
            "parentRefs": [{"name": parent}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": path}}],
                    "backendRefs": [{"name": name, "port": port, **(filters if per_backend else {})}],
                    **({} if per_backend else filters),
                }
            ],
        },
    }


def programmed(fleet: Fleet, cluster: str, namespace: str) -> str:
    """The address of the namespace's one gateway, once it has one and is programmed."""

    def address() -> str | None:
        (found,) = get(fleet, cluster, "gateways.gateway.networking.k8s.io", "-n", namespace)["items"]
        addresses = found.get("status", {}).get("addresses") or []
        return addresses[0]["value"] if condition(found, "Programmed") == "True" and addresses else None

    return until(address, seconds=180, what=f"the gateway of {cluster} to be programmed", interval=0.2)


def test_a_claim_is_allocated_by_the_real_scheduler(fleet: Fleet, fleet_namespace: str) -> None:
    apply(fleet, WORKER, fleet_namespace, *engines(fleet_namespace))

    fleet.kubectl(WORKER, "-n", fleet_namespace, "rollout", "status", "deployment/engine", "--timeout=180s")
    claims = get(fleet, WORKER, "resourceclaims", "-n", fleet_namespace)["items"]

    assert len(claims) == 2
    for claim in claims:
        results = claim["status"]["allocation"]["devices"]["results"]
        assert len(results) == 4
        assert {result["driver"] for result in results} == {"gpu.nvidia.com"}
        assert all(re.fullmatch(r"worker-1-h100-\d", result["pool"]) for result in results)


def test_a_request_crosses_two_gateways_to_the_right_pod(fleet: Fleet, fleet_namespace: str) -> None:
    envoy = gateway("inference", f"envoy-{fleet_namespace}", "gateway.envoyproxy.io/gatewayclass-controller", 80)
    inner = route("inference", "/inner", "/", ("engine", 8000), per_backend=False)
    apply(fleet, WORKER, fleet_namespace, *engines(fleet_namespace, devices=1), *envoy, inner)
    address = programmed(fleet, WORKER, fleet_namespace)
    traefik = gateway("front", f"traefik-{fleet_namespace}", "traefik.io/gateway-controller", 8000)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "worker"},
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "worker", "labels": {"kubernetes.io/service-name": "worker"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
    outer = route("front", f"/{fleet_namespace}", "/inner", ("worker", 80), per_backend=True)
    apply(fleet, "hub", fleet_namespace, *traefik, service, endpoints, outer)
    port = fleet.cluster("hub")["ports"]["gateway"]
    fleet.kubectl(WORKER, "-n", fleet_namespace, "rollout", "status", "deployment/engine", "--timeout=180s")

    def asked() -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{fleet_namespace}/v1/models", timeout=5) as reply:
                return dict(reply.headers), json.load(reply)
        except (urllib.error.URLError, TimeoutError, ConnectionError):  # the route is not there yet
            return None

    headers, models = until(asked, seconds=180, what="an answer through both gateways", interval=0.2)

    headers = {name.lower(): value for name, value in headers.items()}
    pods = [item["metadata"]["name"] for item in get(fleet, WORKER, "pods", "-n", fleet_namespace)["items"]]
    assert headers["x-localfleet-cluster"] == WORKER
    assert headers["x-localfleet-pod"] in {f"{fleet_namespace}/{pod}" for pod in pods}
    assert models["data"][0]["id"] == "Qwen/Qwen3-8B"


def test_a_data_plane_pod_is_started_again_when_its_process_dies(fleet: Fleet) -> None:
    def restarts() -> tuple[int, bool]:
        (pod,) = get(fleet, "hub", "pods", "-n", "traefik-system")["items"]
        (status,) = pod["status"]["containerStatuses"]
        return status["restartCount"], status["ready"]

    before, _ = restarts()
    command_lines_of(fleet, "/localfleet/traefik")[0].kill()

    wait(lambda: restarts() == (before + 1, True), "Traefik to be ready again")


class Found:
    """A process of the fleet, as this machine sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def command_lines_of(fleet: Fleet, word: str) -> list[Found]:
    """The fleet's processes whose command line has this word."""
    namespace = Path(f"/proc/{control.supervisor_pid(fleet.socket)}/ns/pid").stat().st_ino
    return [Found(pid) for pid, line in processes_in(namespace).items() if word in line]


def processes_in(pid_namespace: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "ns/pid").stat().st_ino == pid_namespace:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile, or is not for us
            continue
    return found


@pytest.mark.parametrize("class_name", ["standard", "standard-wait"])
def test_a_shared_volume_is_bound_and_goes_with_its_claim(fleet: Fleet, fleet_namespace: str, class_name: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "storageClassName": class_name,
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "500Gi"}},
        },
    }
    reader = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "reader"},
        "spec": {
            "containers": [{"name": "reader", "image": "busybox", "volumeMounts": [{"name": "w", "mountPath": "/w"}]}],
            "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}],
        },
    }
    apply(fleet, WORKER, fleet_namespace, claim, reader)

    wait(
        lambda: get(fleet, WORKER, "pvc", "weights", "-n", fleet_namespace)["status"]["phase"] == "Bound",
        "the claim to be bound",
    )
    volume = get(fleet, WORKER, "pvc", "weights", "-n", fleet_namespace)["spec"]["volumeName"]
    fleet.kubectl(WORKER, "-n", fleet_namespace, "delete", "pod/reader", "pvc/weights", "--wait=false")

    def volumes() -> set[str]:
        return {item["metadata"]["name"] for item in get(fleet, WORKER, "pv")["items"]}

    wait(lambda: volume not in volumes(), "the volume to go")


@pytest.mark.parametrize(("said", "ends"), [(None, "Complete"), ("fail", "Failed"), ("hang", None)])
def test_a_job_ends_as_its_pods_say(fleet: Fleet, fleet_namespace: str, said: str | None, ends: str | None) -> None:
    annotations = {"localfleet.dev/job": said} if said else {}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work"},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "work", "image": "busybox"}]},
            },
        },
    }
    apply(fleet, WORKER, fleet_namespace, job)

    def found() -> dict[str, Any]:
        return get(fleet, WORKER, "job", "work", "-n", fleet_namespace)

    if ends:
        wait(lambda: condition(found(), ends) == "True", f"the job to be {ends}")
    else:
        wait(lambda: found()["status"].get("ready") == 1, "the job's pod to run")
        assert found()["status"].get("conditions") is None


@pytest.mark.parametrize("direction", Direction)
def test_a_cluster_that_is_cut_off_says_nothing_until_it_is_healed(fleet: Fleet, direction: Direction) -> None:
    assert answers(fleet, WORKER)

    fleet.cut(WORKER, direction)
    try:
        assert not answers(fleet, WORKER)
        assert answers(fleet, "worker-2")
        assert fleet.cluster(WORKER)["fault"] == f"cut off ({direction.value})"
    finally:
        fleet.heal(WORKER)

    wait(lambda: answers(fleet, WORKER), "the cluster to answer again")


def test_a_delay_is_felt_both_ways_until_it_is_healed(fleet: Fleet) -> None:
    port = fleet.cluster("hub")["ports"]["gateway"]

    def seconds() -> float:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=30) as gateway:
            gateway.sendall(b"GET /nowhere HTTP/1.1\r\nHost: test\r\n\r\n")
            assert gateway.recv(12) == b"HTTP/1.1 404"
        return time.monotonic() - began

    fleet.delay("hub", 700)
    try:
        assert seconds() >= 1.4
        assert fleet.cluster("hub")["fault"].startswith("delayed by 700 ms")
    finally:
        fleet.heal("hub")

    wait(lambda: seconds() < 1.4, "the delay to be over")


def test_a_paused_api_server_is_silent_and_goes_on_when_resumed(fleet: Fleet) -> None:
    fleet.fault(WORKER, "kube-apiserver", "pause")
    try:
        assert not answers(fleet, WORKER)
        assert fleet.cluster(WORKER)["components"]["kube-apiserver"] == "paused"
    finally:
        fleet.fault(WORKER, "kube-apiserver", "resume")

    wait(lambda: answers(fleet, WORKER), "the API server to answer again")


def test_up_again_starts_only_what_has_died(fleet: Fleet) -> None:
    def pids() -> set[int]:
        return {found.pid for found in command_lines_of(fleet, "kube-")}

    before = pids()
    fleet.fault("worker-2", "kube-scheduler", "kill")
    assert fleet.cluster("worker-2")["components"]["kube-scheduler"].startswith("dead")

    fleet.up(Options(workers=2))

    assert fleet.cluster("worker-2")["components"]["kube-scheduler"] == "running"
    wait(lambda: len(pids()) == len(before), "the new scheduler has its own command line, not that of who forked it")
    assert len(before - pids()) == 1
    assert len(pids() - before) == 1


def test_an_api_server_that_was_killed_comes_back_with_its_data(fleet: Fleet, fleet_namespace: str) -> None:
    for component in ("kube-apiserver", "etcd"):
        fleet.fault("worker-2", component, "kill")
    assert not answers(fleet, "worker-2")

    fleet.fault("worker-2", "etcd", "restart")
    fleet.fault("worker-2", "kube-apiserver", "restart")

    assert get(fleet, "worker-2", "namespace", fleet_namespace)["metadata"]["name"] == fleet_namespace


def test_expired_credentials_are_refused_and_rotated_ones_accepted(fleet: Fleet) -> None:
    old = fleet.kubeconfig(WORKER).read_text()
    fleet.credentials(WORKER, "expire")

    def refusal() -> bool:
        try:
            fleet.kubectl(WORKER, "get", "namespaces")
        except FleetError as error:
            return "Unauthorized" in str(error) or "provide credentials" in str(error)
        return False

    wait(refusal, "the old credentials to be refused")

    fleet.credentials(WORKER, "rotate")

    wait(lambda: answers(fleet, WORKER), "the new credentials to be accepted")
    assert fleet.kubeconfig(WORKER).read_text() != old


def test_a_failed_node_is_tainted_by_the_real_controller_until_it_is_mended(fleet: Fleet, fleet_namespace: str) -> None:
    node = f"{WORKER}-l4-1"
    spec = {"nodeName": node, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "any", "image": "any"}]}
    apply(fleet, WORKER, fleet_namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})

    def taints() -> set[str]:
        return {taint["key"] for taint in get(fleet, WORKER, "node", node)["spec"].get("taints", [])}

    def ready() -> str | None:
        return condition(get(fleet, WORKER, "pod", "p", "--namespace", fleet_namespace), "Ready")

    wait(lambda: ready() == "True", "the pod to be ready")
    fleet.node(WORKER, node, down=True)
    try:
        wait(lambda: "node.kubernetes.io/unreachable" in taints(), "the node to be tainted")
        # As the node controller does when it is the first to notice, which here it is not.
        unready = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
        mine = ("--namespace", fleet_namespace, "pod", "p")
        fleet.kubectl(WORKER, "patch", *mine, "--subresource=status", "--type=strategic", f"--patch={unready}")
        assert ready() == "False", "nobody is left to say otherwise"
    finally:
        fleet.node(WORKER, node, down=False)

    wait(lambda: "node.kubernetes.io/unreachable" not in taints(), "the taint to go")
    wait(lambda: ready() == "True", "the pod to be ready again")


def test_one_more_cluster_for_one_test(fleet: Fleet, extra_cluster: Callable[[], str]) -> None:
    name = extra_cluster()

    nodes = get(fleet, name, "nodes")["items"]

    assert {condition(node, "Ready") for node in nodes} == {"True"}
    assert not get(fleet, name, "deployments", "-A")["items"]
    fleet.remove(name)
    assert name not in {each["name"] for each in fleet.status()["clusters"]}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of a hub alone, not yet up."""
    alone = Fleet(tmp_path / "fleet")
    yield alone
    alone.down()


@pytest.mark.parametrize("death", ["of the supervisor", "of nobody"])
def test_down_leaves_nothing(small: Fleet, death: str) -> None:
    small.up(Options(workers=0, data_plane=False))
    supervisor = control.supervisor_pid(small.socket)
    namespace = Path(f"/proc/{supervisor}/ns/pid").stat().st_ino
    assert len(processes_in(namespace)) > 5

    if death == "of the supervisor":
        os.kill(supervisor, signal.SIGTERM)
        wait(lambda: not processes_in(namespace), "everything to die with the supervisor", seconds=60)
        assert not small.is_up()
    small.down()

    assert not processes_in(namespace)
    assert not small.folder.exists()
    assert not small.down()


def test_a_port_that_is_taken_is_named(small: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(FleetError, match=rf"port {port} of 127\.0\.0\.1 is not to be had .*"):
            small.up(Options(workers=0, base_port=port))


def test_a_fault_proxy_stands_between_the_kubeconfig_and_the_api_server(small: Fleet) -> None:
    small.up(Options(workers=0, data_plane=False, fault_proxy=True))

    small.kubectl("hub", "create", "namespace", "seen")

    def first() -> list[str]:
        lines = (small.folder / "clusters/hub/requests.jsonl").read_text().splitlines(keepends=True)
        calls = [json.loads(line) for line in lines if line.endswith("\n")]
        return [call["call"]["method"] for call in calls if call["mutating_call"] == 1]

    wait(lambda: bool(first()), "the call to be recorded, which it is once it is over")
    assert first() == ["POST"]
    with pytest.raises(FleetError, match="let a rule of it answer 401"):
        small.credentials("hub", "expire")


def test_status_prints_the_memory_of_each_cluster(fleet: Fleet) -> None:
    environment = {**os.environ, "LOCALFLEET_HOME": str(fleet.folder)}
    command = [sys.executable, "-m", "localfleet", "status"]

    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    for name in ("hub", "worker-1", "worker-2"):
        found = re.search(rf"^{name}: API 127\.0\.0\.1:\d+, gateway 127\.0\.0\.1:\d+, (\d+) MiB", printed, re.MULTILINE)
        assert found
        assert 100 < int(found[1]) < (2400 if "GOGC" in os.environ else 1200)  # tests/support/run.py sets it


def test_a_command_runs_in_a_clusters_network(fleet: Fleet) -> None:
    done = subprocess.run(fleet.inside(["ip", "-4", "addr"], WORKER), check=True, capture_output=True, text=True)

    assert f"{fleet.cluster(WORKER)['address']}/30" in done.stdout
