"""A model answers on your machine: a fleet, the operator, two GPU clusters, one deployment, one URL.

The clusters have nothing on them to begin with. The operator installs their software, and the hub's, with the real
Helm; the charts are small ones under the real ones' names (`localfleet/charts.py`), since those are not to be had here.

Everything stays up, to be played with; `make demo-down` ends it. A second run uses what is up and starts the operator
anew, from the code as it is now.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column

from localfleet import binaries
from localfleet.charts import envoy_gateway, pack, stand_in
from localfleet.errors import FleetError
from localfleet.fleet import Fleet, Options, default_folder, path, prepare
from localfleet.kubeclient import APPLY, ApiError, KubeClient, Manifest, connect, entries, section
from localfleet.processes import tail
from modelplane_operator.api.names import remote_namespace
from modelplane_operator.api.serving_stack import Versions
from modelplane_operator.clusters.stack.charts import STACK
from scripts import chart, demo_cache, terminal

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "localfleet" / "profiles" / "demo.yaml"
PLATFORM, MODEL = (ROOT / "examples" / "demo" / f"{name}.yaml" for name in ("platform", "model"))
CACHE = ROOT / "examples" / "demo" / "cache.yaml"
GUARDED = ROOT / "examples" / "recipes" / "api-keys.yaml"
WORKERS = ("worker-1", "worker-2")
CACHED, WITH_STORAGE = "made-up", WORKERS[0]
# Times are shorter than in production: somebody is watching.
HURRIED = ("--drain-grace=5", "--engine-drain=5", "--engine-grace=10")
# API servers of the fleet: a tenant may bring one of them as a cluster of its own (docs/llminference.md).
TENANTS_CLUSTERS = "--allow-endpoints=10.90.0.0/16"
KEYS_PORT = 8081
GATEWAY_PORT = 8082  # where what installs the hub gateway says how it is
HUB_GATEWAY = "modelplane-operator-hub-gateway"
WEBHOOK = "localhost:9443"  # in the hub's network, where its API server is, too
SIGNED_IN = "8760h"  # for as long as somebody may play
PROGRAM = "scripts.demo_operator"
SYSTEM, NAMESPACE, NAME = "modelplane-system", "ml-team", "qwen3-8b"
API = "/apis/modelplane.ai/v1alpha1"
INSTALLED = [one for one in STACK if one.default]
STACKS = f"/apis/infrastructure.modelplane.ai/v1alpha1/namespaces/{SYSTEM}/servingstacks"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOT_FOUND, TOO_MANY_REQUESTS = 404, 429
DEADLINE = 180.0
POLL_INTERVAL = 0.2
STOP_SECONDS = 15.0

Say = Callable[[str], None]


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Display:
    """What happens, step by step: live on a terminal, a line per piece of news elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.elapsed:5.1f} s  {task.description}", table_column=Column(no_wrap=True)),
            TextColumn("[dim]{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            expand=True,
        )

    @contextmanager
    def shown(self) -> Generator[None]:
        """Draw, while this lasts."""
        if not self._console.is_terminal:
            yield
            return
        with self._progress:
            yield

    @contextmanager
    def step(self, what: str) -> Generator[Say]:
        """One step, and how long it took; it may say on the way where it stands."""
        began = time.monotonic()
        if self._console.is_terminal:
            task = self._progress.add_task(what, total=1, note="")
            yield lambda note: self._progress.update(task, note=note)
            self._progress.update(task, completed=1, note="")
            self._progress.stop_task(task)
            return
        print(terminal.short(f"{what} ..."), flush=True)
        yield lambda note: print(terminal.short(f"    {time.monotonic() - began:4.1f} s  {note}"), flush=True)
        print(f"  done in {time.monotonic() - began:.1f} s", flush=True)


# The operator --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """A command of the image in the background, in the hub's network, as it would be in a pod there."""

    fleet: Fleet
    name: str
    account: str
    """The chart's service account that it is on the hub."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def log(self) -> Path:
        return self.fleet.folder / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        return self.fleet.folder / f"{self.name}.pid"

    @property
    def kubeconfig(self) -> Path:
        return self.fleet.folder / f"{self.name}.kubeconfig"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self._sign_in()
        run = [sys.executable, "-m", PROGRAM, *arguments]
        command = self.fleet.inside([*run, f"--kubeconfig={self.kubeconfig}"], "hub")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PATH": path(), **self.environment},
                start_new_session=True,
            )
        self.pid_file.write_text(str(process.pid))
        return process

    def _sign_in(self) -> None:
        """Write a kubeconfig with which it may do what the chart's account may."""
        asked = ("-n", SYSTEM, "create", "token", self.account, f"--duration={SIGNED_IN}")
        config = yaml.safe_load(self.fleet.inner_kubeconfig("hub").read_text())
        config["users"][0]["user"] = {"token": self.fleet.kubectl("hub", *asked).strip()}
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def stop(self) -> bool:
        """End it if it runs; answer whether it did."""
        if not self.is_up():
            return False
        pid = int(self.pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.is_up():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.pid_file.unlink()
        return True

    def is_up(self) -> bool:
        try:
            pid = int(self.pid_file.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except (OSError, ValueError):
            return False
        return state != "Z" and (PROGRAM in command)  # else the number is somebody else's by now

    def check(self) -> None:
        if not self.is_up():
            raise DemoError(f"the {self.name} has ended:\n{tail(self.log)}")


def operator_of(fleet: Fleet, environment: Mapping[str, str] = {}) -> Program:
    return Program(fleet, "operator", "modelplane-operator", environment)


def hub_gateway_of(fleet: Fleet, environment: Mapping[str, str] = {}) -> Program:
    """Return what installs the hub gateway."""
    return Program(fleet, "hub-gateway", HUB_GATEWAY, environment)


def key_service_of(fleet: Fleet) -> Program:
    return Program(fleet, "keys", "modelplane-keys")


def mirror_of(fleet: Fleet) -> Path:
    """Where all charts of clusters are."""
    return fleet.folder / "charts"


def hub_mirror_of(fleet: Fleet) -> Path:
    """Where the hub gateway's chart is: the real one, under the name of one that stands in on clusters."""
    return fleet.folder / "hub-charts"


def start(fleet: Fleet, environment: Mapping[str, str] = {}) -> Sequence[subprocess.Popen[bytes]]:
    """Install what the chart does, and start from the code as it is what runs in its pods."""
    manifests = chart.rendered(binaries.ensure("helm")["helm"], SYSTEM)
    everything = {
        "apiVersion": "v1",
        "kind": "List",
        "items": chart.without_pods(manifests, SYSTEM, f"https://{WEBHOOK}/"),
    }
    apply(fleet, "-", documents=orjson.dumps(everything).decode())
    keys = f"{fleet.cluster('hub')['address']}:{KEYS_PORT}"
    # Charts that stand in have other digests, and so have those that are packed from source.
    helm = [f"--helm={binaries.ensure('helm')['helm']}", "--chart-digests=ignored"]
    mirror, hub_mirror = (f"--chart-mirror={folder}" for folder in (mirror_of(fleet), hub_mirror_of(fleet)))
    webhook = f"--admission-listen={WEBHOOK}"
    arguments = (
        *chart.arguments(manifests),
        *HURRIED,
        TENANTS_CLUSTERS,
        *helm,
        mirror,
        webhook,
        f"--keys-address={keys}",
    )
    gateway = (*chart.arguments(manifests, HUB_GATEWAY), *helm, hub_mirror, f"--listen=127.0.0.1:{GATEWAY_PORT}")
    return (
        operator_of(fleet, environment).start(*arguments),
        hub_gateway_of(fleet, environment).start(*gateway),
        key_service_of(fleet).start("keys", f"--listen={keys}"),
    )


def stop(fleet: Fleet) -> bool:
    """End all that run; answer whether the operator did."""
    key_service_of(fleet).stop()
    hub_gateway_of(fleet).stop()
    return operator_of(fleet).stop()


# Waiting -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub's API, and what one waits for there."""

    client: KubeClient
    operator: Program

    async def get(self, plural: str, name: str = "", namespace: str = "") -> Manifest:
        where = f"/namespaces/{namespace}" if namespace else ""
        return await self.ask(f"{API}{where}/{plural}{name and '/' + name}")

    async def ask(self, where: str) -> Manifest:
        """What the hub has there. Of a kind that is new it tells nothing for some moments after it said it would."""
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                return await self.client.request("GET", where)
            except ApiError as error:
                if error.status != TOO_MANY_REQUESTS or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_INTERVAL)

    async def install(self, definitions: Sequence[Manifest]) -> None:
        """Apply definitions of kinds and wait until they are served; kubectl would take ten times as long."""
        paths = [f"{CRDS}/{each['metadata']['name']}" for each in definitions]
        as_us = {"fieldManager": "demo", "force": "true"}
        for where, each in zip(paths, definitions, strict=True):
            await self.client.request("PATCH", where, each, content_type=APPLY, params=as_us)
        deadline = time.monotonic() + DEADLINE
        while not all([holds(await self.client.request("GET", where), "Established") for where in paths]):
            if time.monotonic() > deadline:
                raise DemoError(f"waited {DEADLINE:g} s in vain for the hub to serve our kinds")
            await asyncio.sleep(POLL_INTERVAL)

    async def ready(self, say: Say, plural: str, *names: str, namespace: str = "") -> None:
        """Wait until all of them are Ready, and say what is in the way."""
        said, deadline = "", time.monotonic() + DEADLINE
        while True:
            missing = [note for name in names if (note := unready(await self.get(plural, name, namespace)))]
            if not missing:
                return
            if (news := await self.installing() or "; ".join(missing)) != said:
                say(said := news)
            if time.monotonic() > deadline:
                raise DemoError(f"waited {DEADLINE:g} s in vain: {said}\nThe operator's log: {self.operator.log}")
            self.operator.check()
            await asyncio.sleep(POLL_INTERVAL)

    async def installing(self) -> str:
        """How far the software of the clusters is; empty when all of it is there."""
        stacks = (await self.ask(STACKS))["items"]
        return "; ".join(filter(None, map(unfinished, sorted(stacks, key=lambda one: one["metadata"]["name"]))))


def unfinished(stack: Manifest) -> str:
    """How many charts of a cluster are there; empty when all are."""
    (owner,) = stack["metadata"]["ownerReferences"]
    there = sum(one["state"] == "Deployed" for one in entries(stack, "status", "components"))
    return f"{owner['name']}: {there} of {len(INSTALLED)} charts" if there < len(INSTALLED) else ""


def condition(manifest: Manifest, kind: str) -> Manifest:
    return next((one for one in entries(manifest, "status", "conditions") if one["type"] == kind), {})


def holds(manifest: Manifest, kind: str) -> bool:
    return condition(manifest, kind).get("status") == "True"


def unready(manifest: Manifest) -> str:
    """What an object says of why it is not Ready; empty when it is."""
    if holds(manifest, "Ready"):
        return ""
    found = condition(manifest, "Ready")
    return f"{manifest['metadata']['name']}: {found.get('message') or found.get('reason') or 'not looked at yet'}"


# Asking the model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said, and who it was."""

    text: str
    cluster: str
    pod: str


def question() -> Manifest:
    return {"model": NAME, "messages": [{"role": "user", "content": "Who are you?"}]}


async def chat(url: str, *, stream: bool) -> Reply:
    """Ask for a chat completion; raises aiohttp.ClientError when there is none."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), raise_for_status=True) as session,
        session.post(
            url, data=orjson.dumps(question() | {"stream": stream}), headers={"Content-Type": "application/json"}
        ) as answer,
    ):
        body = await answer.text()
        who = (answer.headers.get(f"x-localfleet-{part}", "?") for part in ("cluster", "pod"))
        return Reply(streamed(body) if stream else spoken(body), *who)


def spoken(body: str) -> str:
    return orjson.loads(body)["choices"][0]["message"]["content"]


def streamed(body: str) -> str:
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    pieces = [section(choice, "delta").get("content") for event in events[:-1] for choice in choices(event)]
    return "".join(filter(None, pieces))


def choices(event: str) -> list[Any]:
    return orjson.loads(event).get("choices", [])


async def first_reply(url: str, say: Say) -> Reply:
    """The first answer: a gateway takes a moment until it knows a new route."""
    deadline, said = time.monotonic() + DEADLINE, ""
    while True:
        try:
            return await chat(url, stream=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            if (news := str(error) or "no answer in time") != said:
                say(said := news)
            if time.monotonic() > deadline:
                raise DemoError(f"waited {DEADLINE:g} s for an answer from {url}: {said}") from error
        await asyncio.sleep(POLL_INTERVAL)


# The demo ------------------------------------------------------------------------------------------------------------


async def run(console: Console) -> None:
    prepare(PROFILE)  # before anything else is drawn: it draws itself
    fleet, display, began = Fleet(default_folder()), Display(console), time.monotonic()
    with display.shown():
        with display.step("A fleet: a hub and two GPU clusters") as say:
            await asyncio.to_thread(bring_up, fleet, say)
        async with on_hub(fleet) as hub:
            with display.step("Our kinds, on the hub"):
                await hub.install(definitions())
            with display.step(
                "The chart's accounts and policies, and the operator and the key service as these accounts"
            ):
                fill(fleet)
                stop(fleet)
                start(fleet)
            with display.step("The platform team: a gateway, two classes, two clusters, and their software") as say:
                publish(fleet)
                await hub.ready(say, "inferencegateways", "default")
                await hub.ready(say, "inferenceclusters", *WORKERS)
            with display.step("The ML team: two replicas of a model, one URL") as say:
                apply(fleet, MODEL)
                await hub.ready(say, "modeldeployments", NAME, namespace=NAMESPACE)
                await hub.ready(say, "modelservices", NAME, namespace=NAMESPACE)
            address = (await hub.get("modelservices", NAME, NAMESPACE))["status"]["address"]
            url = f"{outside(fleet, address)}/v1/chat/completions"
            with display.step("A question, through the hub gateway") as say:
                replies = [await first_reply(url, say), await chat(url, stream=True)]
            seconds = time.monotonic() - began
            with display.step("The weights of a made-up model, and a replica that starts from them") as say:
                apply(fleet, CACHE)
                await fill_cache(fleet, hub, say)
                await hub.ready(say, "modeldeployments", CACHED, namespace=NAMESPACE)
            replicas = (await hub.get("modelreplicas", namespace=NAMESPACE))["items"]
    console.print()
    for manifest in replicas:
        weights = section(manifest, "spec", "modelCacheRef").get("name")
        rest = f", from the weights of ModelCache {weights}" if weights else ""
        print(f"replica {manifest['metadata']['name']} runs on {manifest['spec']['clusterName']}{rest}")
    for kind, reply in zip(("answered", "streamed"), replies, strict=True):
        print(f"\n{kind} by pod {reply.pod} on {reply.cluster}:\n  {reply.text}")
    print(terminal.folded(suggestions(fleet, url)))
    print(f"answered in {seconds:.0f} s")


async def fill_cache(fleet: Fleet, hub: Hub, say: Say) -> None:
    """Fill the volume as a node would, and say how far it is; nothing is done when it is full from the last time."""

    async def staged() -> bool:
        return holds(await hub.get("modelcaches", CACHED, NAMESPACE), "Ready")

    async with connect(fleet.kubeconfig(WITH_STORAGE)) as worker, asyncio.TaskGroup() as group:
        group.create_task(demo_cache.filled(fleet, WITH_STORAGE, worker, remote_namespace(NAMESPACE), staged))
        said, deadline = "", time.monotonic() + DEADLINE
        while not await staged():
            told = section(await hub.get("modelcaches", CACHED, NAMESPACE), "status", "summary")
            if (news := f"{told.get('progress') or '0%'} of {told.get('source') or CACHED}") != said:
                say(said := news)
            if time.monotonic() > deadline:
                raise DemoError(f"waited {DEADLINE:g} s in vain for the cache: kubectl describe mc -n {NAMESPACE}")
            await asyncio.sleep(POLL_INTERVAL)


def definitions() -> Sequence[Manifest]:
    return [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]


def bring_up(fleet: Fleet, say: Say) -> None:
    fleet.up(Options(workers=len(WORKERS), profile=PROFILE, data_plane=False), say)
    for name in WORKERS:
        fleet.heal(name)  # perhaps it was cut off while the demo was played with


def fill(fleet: Fleet, more: Iterable[tuple[str, str]] = ()) -> None:
    """Put every chart there that the operator will ask for. `more`: their names and versions."""
    mirror, hub_mirror = mirror_of(fleet), hub_mirror_of(fleet)
    for folder in (mirror, hub_mirror):
        folder.mkdir(exist_ok=True)
    for name, version in (*((one.chart, one.version(Versions())) for one in STACK), *more):
        pack(mirror, name, version, stand_in(name))
    gateway = next(yaml.safe_load_all(PLATFORM.read_text()))
    version = gateway["spec"]["envoyGateway"]["version"]
    pack(hub_mirror, "gateway-helm", version, envoy_gateway(version))


@asynccontextmanager
async def on_hub(fleet: Fleet) -> AsyncGenerator[Hub]:
    async with connect(fleet.kubeconfig("hub")) as client:
        yield Hub(client, operator_of(fleet))


def publish(fleet: Fleet) -> None:
    """What the platform team has: the clusters' kubeconfigs, in Secrets, and the objects that name them."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    secrets = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{name}-kubeconfig", "namespace": SYSTEM},
            "stringData": {"kubeconfig": fleet.inner_kubeconfig(name).read_text()},
        }
        for name in WORKERS
    ]
    everything = {"apiVersion": "v1", "kind": "List", "items": [namespace, *secrets]}
    fleet.kubectl("hub", "apply", "-f-", documents=orjson.dumps(everything).decode())
    apply(fleet, PLATFORM)


def apply(fleet: Fleet, file: Path | str, documents: str | None = None) -> None:
    # Forced: what was scaled or tainted since the last run is as the file says again.
    fleet.kubectl("hub", "apply", "--server-side", "--force-conflicts", "-f", str(file), documents=documents)


def outside(fleet: Fleet, address: str) -> str:
    """The URL by which this machine reaches what the hub's gateway serves at an address."""
    segments = address.split("/", 3)[3]  # http: / / host / ...
    return f"http://127.0.0.1:{fleet.cluster('hub')['ports']['gateway']}/{segments}"


def suggestions(fleet: Fleet, url: str) -> str:
    kubectl = binaries.ensure("kubectl")["kubectl"]
    home = os.environ.get("LOCALFLEET_HOME")
    python = f"{'LOCALFLEET_HOME=' + shlex.quote(home) + ' ' if home else ''}.venv/bin/python -m localfleet"
    body = orjson.dumps(question()).decode()
    taint = '{"spec":{"taints":[{"key":"maintenance","effect":"NoExecute"}]}}'
    drained = f"kubectl patch inferencecluster worker-1 --type=merge -p '{taint}'"
    guarded = url.replace(f"/{NAME}/", f"/{NAME}-with-keys/")
    return f"""
Try next, in this folder; everything below can be pasted.

First, for all of it:
  export KUBECONFIG={fleet.kubeconfig("hub")} PATH="$PATH:{kubectl.parent}"

Ask again:
  curl -s {url} -H 'Content-Type: application/json' -d '{body}'

Look:
  kubectl get inferenceclusters,modelservices -A
  kubectl get servingstacks -A -o yaml
  kubectl get modeldeployments,modelreplicas,modelendpoints -n {NAMESPACE}
  kubectl describe modeldeployment {NAME} -n {NAMESPACE}
  kubectl get modelcaches -n {NAMESPACE} -o wide

A model in five fields, on a cluster that the operator chooses; docs/llminference.md has those on a cluster of your own:
  kubectl apply -f examples/llminference/fleet.yaml
  kubectl get llminferences -n {NAMESPACE}

Scale:
  kubectl scale modeldeployment {NAME} -n {NAMESPACE} --replicas=4

Lose a cluster, see its replicas move after half a minute, and find it again:
  {python} fault cut worker-2
  kubectl get modelreplicas -n {NAMESPACE} --watch
  {python} fault heal worker-2

Drain the other without losing a request, and take it back:
  {drained}
  kubectl get modelreplicas -n {NAMESPACE} --watch
  kubectl patch inferencecluster worker-1 --type=merge -p '{{"spec":{{"taints":[]}}}}'

Give it a second URL, for clients with an API key alone, and ask there without a key and with one:
  kubectl create secret generic chat-keys -n {NAMESPACE} --from-literal=me=a-key-of-mine
  kubectl apply -f {GUARDED.relative_to(ROOT)}
  kubectl wait -n {NAMESPACE} --for=condition=Ready modelservice/qwen3-8b-with-keys
  curl -i {guarded} -H 'Content-Type: application/json' -d '{body}'
  curl -s {guarded} -H 'Content-Type: application/json' -H 'Authorization: Bearer a-key-of-mine' -d '{body}'
  curl -s {guarded} -H 'Content-Type: application/json' -H 'x-api-key: a-key-of-mine' -d '{body}'

Ask for a GPU that no cluster has, and read why there is no place:
  sed '/^---/,$d; s/{NAME}$/too-big/; s/22Gi/220Gi/' {MODEL.relative_to(ROOT)} | kubectl apply -f -
  .venv/bin/modelplane why {NAMESPACE}/too-big

Have the same told before anything is stored, and what a drain would come to:
  sed '/^---/,$d; s/{NAME}$/too-big/; s/22Gi/220Gi/' {MODEL.relative_to(ROOT)} | kubectl apply --dry-run=server -f -
  .venv/bin/modelplane plan --drain worker-1

Ask by the command, and see pods; what they lead to is in the fleet's own network, and so they run there:
  {python} exec --in hub -- .venv/bin/modelplane ask {NAMESPACE}/{NAME} Hi
  {python} exec --in hub -- .venv/bin/modelplane tree {NAMESPACE}/{NAME}

See all of it in a browser, live (docs/page.md):
  .venv/bin/modelplane page

What the operator says:
  tail -f {operator_of(fleet).log}

End all of it:
  {"LOCALFLEET_HOME=" + shlex.quote(home) + " " if home else ""}make demo-down
"""


def down() -> None:
    """End the operator, the key service and the fleet."""
    fleet = Fleet(default_folder())
    if stop(fleet):
        print("the operator has ended")
    print("the fleet is down" if fleet.down() else "no fleet was up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--down", action="store_true", help="end the operator and the fleet")
    asked = parser.parse_args()
    try:
        down() if asked.down else asyncio.run(run(Console()))
    except (DemoError, chart.ChartError, FleetError, ApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
        what_now = "" if asked.down else "\nWhat is up stays: `make demo` goes on from there, `make demo-down` ends it."
        sys.exit(f"demo: {error or type(error).__name__}{what_now}")


if __name__ == "__main__":
    main()
