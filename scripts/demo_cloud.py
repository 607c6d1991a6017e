"""Clusters that clouds make, on your machine: from apply to an answer, and from delete to nothing.

AWS and Google Cloud are stand-ins (`tests/support/aws`, `tests/support/google`), whose EKS and GKE make a cluster in
seconds, which is a workload cluster of a local fleet. The operator, its calls, Helm, gateways and Kubernetes are real.
All of it ends with the demo.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from rich.console import Console

from localfleet.errors import FleetError
from localfleet.fleet import Fleet, Options, default_folder, prepare
from localfleet.kubeclient import ApiError, entries
from modelplane_operator.clouds.eks.render.charts import CHARTS
from scripts import chart, demo
from tests.support.aws import fleet as aws
from tests.support.google import fleet as google

PLATFORM, MODEL = (demo.ROOT / "examples" / "demo" / f"{name}.yaml" for name in ("cloud", "cloud-model"))
CLUSTERS = {"oregon": "eksclusters", "iowa": "gkeclusters"}
WORKERS = ("worker-1", "worker-2")
"""Which of the fleet's clusters each cloud gives out."""
ENVIRONMENT = {**aws.ENVIRONMENT, **google.ENVIRONMENT}
"""Variables that lead the operator to the clouds."""
INFRASTRUCTURE = f"/apis/infrastructure.modelplane.ai/v1alpha1/namespaces/{demo.SYSTEM}"
ERRORS = (demo.DemoError, chart.ChartError, FleetError, ApiError, aiohttp.ClientError, OSError, TimeoutError)
MOST = 1200.0
"""Seconds for a cluster to be made, or to go; here it takes some minutes."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """One that stands in."""

    name: str
    secret: Mapping[str, Any]
    """With the credentials of an account there."""
    left: Callable[[], Sequence[str]]
    changes: Callable[[], int]


@dataclass(slots=True)
class Watch:
    """Tells of each resource on the clouds as it comes and goes."""

    hub: demo.Hub
    console: Console
    told: dict[str, str] = field(default_factory=dict[str, str])

    async def tell(self) -> None:
        """Print what has changed since it was last told."""
        there = {key: state for name in CLUSTERS for key, state in (await self.states(name)).items()}
        for key in sorted(there.keys() | self.told.keys()):
            if (state := there.get(key, "gone")) != self.told.get(key):
                self.console.print(f"           {key:52} {state}", markup=False, highlight=False)
        self.told = dict(there)

    async def states(self, cluster: str) -> Mapping[str, str]:
        try:
            found = await self.hub.ask(f"{INFRASTRUCTURE}/{CLUSTERS[cluster]}/{cluster}")
        except ApiError as error:
            if error.status != demo.NOT_FOUND:
                raise
            return {}
        return {f"{cluster}/{one['key']}": one["state"] for one in entries(found, "status", "resources")}


async def run(console: Console) -> None:
    prepare(demo.PROFILE)  # before anything else is drawn: it draws itself
    fleet, display = Fleet(default_folder().parent / "cloud"), demo.Display(console)
    try:
        with display.shown():
            with display.step("A fleet: a hub, and a cluster for each cloud to give out") as say:
                await asyncio.to_thread(bring_up, fleet, say)
            with aws.aws_of(fleet, WORKERS[0]) as amazon, google.google_of(fleet, WORKERS[1]) as other:
                amazon.whose_else = other.whose
                clouds = (
                    Cloud("AWS", aws.credentials(), lambda: amazon.left, lambda: amazon.changes),
                    Cloud("Google Cloud", google.credentials(other), lambda: other.state.left, lambda: other.changes),
                )
                async with demo.on_hub(fleet) as hub:
                    await shown(fleet, hub, clouds, display, Watch(hub, console))
    finally:
        demo.stop(fleet)
        fleet.down()


def bring_up(fleet: Fleet, say: demo.Say) -> None:
    fleet.down()
    fleet.up(
        Options(workers=len(WORKERS), profile=demo.PROFILE, data_plane=False, token_webhook=aws.TOKEN_WEBHOOK), say
    )


async def shown(fleet: Fleet, hub: demo.Hub, clouds: Sequence[Cloud], display: demo.Display, watch: Watch) -> None:
    with display.step("Our kinds, the chart's accounts and policies, and the operator with the keys of two accounts"):
        await hub.install(demo.definitions())
        demo.fill(fleet, CHARTS)
        demo.start(fleet, ENVIRONMENT)
        for cloud in clouds:
            demo.apply(fleet, "-", documents=orjson.dumps(cloud.secret).decode())
    with display.step("kubectl apply: InferenceCluster oregon, source EKS, and iowa, source GKE") as say:
        demo.apply(fleet, PLATFORM)
        for name in CLUSTERS:
            await until_ready(hub, name, watch, say)
    with display.step("A model on each, and one URL for both through the hub gateway") as say:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": demo.NAMESPACE}}
        demo.apply(fleet, "-", documents=orjson.dumps(namespace).decode())
        demo.apply(fleet, MODEL)
        await hub.ready(say, "modelservices", demo.NAME, namespace=demo.NAMESPACE)
        address = (await hub.get("modelservices", demo.NAME, demo.NAMESPACE))["status"]["address"]
        await all_answer(f"{demo.outside(fleet, address)}/v1/chat/completions", say)
    made = [len(cloud.left()) for cloud in clouds]
    with display.step("kubectl delete: the models, then the clusters") as say:
        fleet.kubectl("hub", "delete", "--filename", str(MODEL))
        for name in CLUSTERS:
            await until_unused(hub, name)
            fleet.kubectl("hub", "delete", "inferencecluster", name, "--wait=false")
        for name in CLUSTERS:
            await until_gone(hub, name, watch, say)
    for cloud, most in zip(clouds, made, strict=True):
        left = cloud.left()
        print(f"\n{cloud.name} had {most} resources, made by {cloud.changes()} calls; it has {len(left)} now")
        if left:
            raise demo.DemoError(f"left on {cloud.name}: {', '.join(left)}")


async def all_answer(url: str, say: demo.Say) -> None:
    """Ask until a model on each cluster has answered: the service gives each an equal share."""
    deadline, heard = time.monotonic() + demo.DEADLINE, set[str]()
    while len(heard) < len(CLUSTERS):
        reply = await demo.first_reply(url, say)
        if reply.cluster not in heard:
            say(f"answered by pod {reply.pod} on {reply.cluster}: {reply.text}")
            heard.add(reply.cluster)
        if time.monotonic() > deadline:
            raise demo.DemoError(f"waited {demo.DEADLINE:g} s in vain: only {', '.join(heard)} answers")


async def until_ready(hub: demo.Hub, cluster: str, watch: Watch, say: demo.Say) -> None:
    deadline, said = time.monotonic() + MOST, ""
    while note := demo.unready(await hub.get("inferenceclusters", cluster)):
        await watch.tell()
        if (news := await hub.installing()) and news != said:
            say(said := news)
        await later(hub, deadline, note)


async def until_unused(hub: demo.Hub, cluster: str) -> None:
    """Wait until no replica is on the cluster: else nobody may delete it."""
    deadline = time.monotonic() + MOST
    while (await hub.get("inferenceclusters", cluster)).get("status", {}).get("replicas"):
        await later(hub, deadline, "replicas are placed on it")


async def until_gone(hub: demo.Hub, cluster: str, watch: Watch, say: demo.Say) -> None:
    deadline, said = time.monotonic() + MOST, ""
    while True:
        try:
            found = await hub.get("inferenceclusters", cluster)
        except ApiError as error:
            if error.status == demo.NOT_FOUND:
                return
            raise
        await watch.tell()
        if (news := demo.unready(found)) != said:
            say(said := news)
        await later(hub, deadline, demo.unready(found))


async def later(hub: demo.Hub, deadline: float, note: str) -> None:
    hub.operator.check()
    if time.monotonic() > deadline:
        raise demo.DemoError(f"waited {MOST:g} s in vain: {note}\nThe operator's log: {hub.operator.log}")
    await asyncio.sleep(demo.POLL_INTERVAL)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        asyncio.run(run(Console()))
    except ERRORS as error:
        sys.exit(f"demo-cloud: {error or type(error).__name__}")


if __name__ == "__main__":
    main()
