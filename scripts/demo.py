"""A model answers on your machine: a fleet, the operator, two GPU clusters, one deployment, one URL.

What the demo says, and what it offers to type next, is in `demo_story.py`; docs/tour.md has more of it.

The clusters have nothing on them to begin with. The operator installs their software, and the hub's, with the real
Helm; the charts are small ones under the real ones' names (`localfleet/charts.py`), since those are not to be had here.

Everything stays up, to be played with; `make demo-down` ends it. A second run uses what is up and starts the operator
anew, from the code as it is now.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
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
from localfleet.fleet import Fleet, Options, default_folder, environment_inside, prepare
from localfleet.kubeclient import APPLY, ApiError, KubeClient, Manifest, connect, entries, section
from localfleet.processes import tail
from modelplane_operator.api.names import remote_namespace
from modelplane_operator.api.serving_stack import Versions
from modelplane_operator.clusters.stack.charts import STACK
from scripts import chart, demo_cache, demo_story, terminal

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "localfleet" / "profiles" / "demo.yaml"
PLATFORM, MODEL = (ROOT / "examples" / "demo" / f"{name}.yaml" for name in ("platform", "model"))
CACHE = ROOT / "examples" / "demo" / "cache.yaml"
WORKERS = ("worker-1", "worker-2")
CACHED = demo_story.CACHED
ENVIRONMENT = "env"  # in the fleet's folder, for a terminal to reach the fleet
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
SYSTEM, NAMESPACE, NAME = "modelplane-system", demo_story.NAMESPACE, demo_story.MODEL
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
                env={**environment_inside(), **self.environment},
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


async def chat(url: str, *, stream: bool) -> Reply:
    """Ask for a chat completion; raises aiohttp.ClientError when there is none."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), raise_for_status=True) as session,
        session.post(
            url,
            data=orjson.dumps(demo_story.QUESTION | {"stream": stream}),
            headers={"Content-Type": "application/json"},
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
    print(terminal.folded(demo_story.opening(gateway_spec()["backend"])), flush=True)
    print(flush=True)
    prepare(PROFILE)  # before the display is drawn: it draws itself
    fleet, display, began = Fleet(default_folder()), Display(console), time.monotonic()
    with display.shown():
        with display.step("Start three Kubernetes clusters: a hub, and two with GPUs") as say:
            await asyncio.to_thread(bring_up, fleet, say)
        async with on_hub(fleet) as hub:
            with display.step("Add Modelplane's kinds to the hub's API"):
                await hub.install(definitions())
            with display.step("Start the operator, with the permissions and policies of its chart"):
                fill(fleet)
                with binaries.locked("demo"):  # of two demos, one ends what the other has started
                    stop(fleet)
                    start(fleet)
            with display.step("Platform team: apply a gateway, hardware and two clusters") as say:
                publish(fleet)
                await hub.ready(say, "inferencegateways", "default")
                await hub.ready(say, "inferenceclusters", *WORKERS)
            with display.step("ML team: apply a model with two replicas and one URL") as say:
                apply(fleet, MODEL)
                await hub.ready(say, "modeldeployments", NAME, namespace=NAMESPACE)
                await hub.ready(say, "modelservices", NAME, namespace=NAMESPACE)
            url = (await hub.get("modelservices", NAME, NAMESPACE))["status"]["address"]
            chat_url = f"{outside(fleet, url)}/v1/chat/completions"
            with display.step("Send the model a question, through the hub gateway") as say:
                reply = await first_reply(chat_url, say)
                await chat(chat_url, stream=True)
            seconds = time.monotonic() - began
            with display.step("ML team: download weights, and start a model from them") as say:
                apply(fleet, CACHE)
                await fill_cache(fleet, hub, say)
                await hub.ready(say, "modeldeployments", CACHED, namespace=NAMESPACE)
            replicas = (await hub.get("modelreplicas", namespace=NAMESPACE))["items"]
    placed = {manifest["metadata"]["name"]: manifest["spec"]["clusterName"] for manifest in replicas}
    print(terminal.folded(demo_story.happened(placed, reply.text, seconds)))
    print(terminal.folded(demo_story.next_steps(write_environment(fleet, url), os.environ.get("LOCALFLEET_HOME", ""))))


def gateway_spec() -> Manifest:
    """Return the spec of the InferenceGateway that the demo applies."""
    return next(yaml.safe_load_all(PLATFORM.read_text()))["spec"]


def write_environment(fleet: Fleet, url: str) -> Path:
    """Write the script that makes a terminal reach the fleet; return its path."""
    gateway = f"http://127.0.0.1:{fleet.cluster('hub')['ports']['gateway']}"
    # The hub gateway takes requests as a proxy gets them, so that `url` works although its address is the fleet's.
    variables = {"KUBECONFIG": str(fleet.kubeconfig("hub")), "URL": url, "FLEET": str(fleet.folder)}
    variables |= {"http_proxy": gateway, "no_proxy": "127.0.0.1,localhost"}
    if home := os.environ.get("LOCALFLEET_HOME"):
        variables["LOCALFLEET_HOME"] = home
    file = fleet.folder / ENVIRONMENT
    file.write_text(demo_story.environment(variables, link_programs(fleet.folder / "bin")))
    return file


def link_programs(folder: Path) -> Path:
    """Link the programs that the demo's commands use in a folder of their own; return it."""
    folder.mkdir(exist_ok=True)
    for target in (ROOT / ".venv" / "bin" / "modelplane", binaries.ensure("kubectl")["kubectl"]):
        (folder / target.name).unlink(missing_ok=True)
        (folder / target.name).symlink_to(target)
    return folder


async def fill_cache(fleet: Fleet, hub: Hub, say: Say) -> None:
    """Fill the volumes as nodes would, and say how far they are; nothing is done when they are full already."""

    async def staged() -> bool:
        return holds(await hub.get("modelcaches", CACHED, NAMESPACE), "Ready")

    async with AsyncExitStack() as connections, asyncio.TaskGroup() as group:
        for name in WORKERS:
            worker = await connections.enter_async_context(connect(fleet.kubeconfig(name)))
            group.create_task(demo_cache.filled(fleet, name, worker, remote_namespace(NAMESPACE), staged))
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
