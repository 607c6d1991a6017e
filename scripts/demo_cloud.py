"""A cluster that a cloud makes, on your machine: from apply to an answer, and from delete to nothing.

AWS is a stand-in (`tests/support/aws`): moto, and an EKS that makes a cluster in seconds, which is a workload cluster
of a local fleet. The operator, its calls, Helm, gateways and Kubernetes are real. All of it ends with the demo.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import orjson
from rich.console import Console

from localfleet.errors import FleetError
from localfleet.fleet import Fleet, Options, default_folder
from localfleet.kubeclient import ApiError, entries
from modelplane_operator.rendering.clusters.eks.charts import CHARTS
from scripts import chart, demo
from tests.support.aws.fleet import ENVIRONMENT, TOKEN_WEBHOOK, aws_of, credentials
from tests.support.aws.server import AwsServer

PLATFORM = demo.ROOT / "examples" / "demo" / "cloud.yaml"
CLUSTER, WORKER = "oregon", "worker-1"
INFRASTRUCTURE = f"/apis/infrastructure.modelplane.ai/v1alpha1/namespaces/{demo.SYSTEM}/eksclusters"
ERRORS = (demo.DemoError, chart.ChartError, FleetError, ApiError, aiohttp.ClientError, OSError, TimeoutError)
MOST = 1200.0
"""Seconds for a cluster to be made, or to go; here it takes some minutes."""


@dataclass(slots=True)
class Watch:
    """Tells of each resource on the cloud as it comes and goes."""

    hub: demo.Hub
    console: Console
    told: dict[str, str] = field(default_factory=dict[str, str])

    async def tell(self) -> None:
        """Print what has changed since it was last told."""
        there = await self.states()
        for key in sorted(there.keys() | self.told.keys()):
            if (state := there.get(key, "gone")) != self.told.get(key):
                self.console.print(f"           {key:44} {state}", markup=False, highlight=False)
        self.told = dict(there)

    async def states(self) -> Mapping[str, str]:
        try:
            found = await self.hub.ask(f"{INFRASTRUCTURE}/{CLUSTER}")
        except ApiError as error:
            if error.status != demo.NOT_FOUND:
                raise
            return {}
        return {one["key"]: one["state"] for one in entries(found, "status", "resources")}


async def run(console: Console) -> None:
    fleet, display = Fleet(default_folder().parent / "cloud"), demo.Display(console)
    try:
        with display.shown():
            with display.step("A fleet: a hub, and a cluster for AWS to give out") as say:
                await asyncio.to_thread(bring_up, fleet, say)
            with aws_of(fleet, WORKER) as aws:
                async with demo.on_hub(fleet) as hub:
                    await shown(fleet, hub, aws, display, Watch(hub, console))
    finally:
        demo.stop(fleet)
        fleet.down()


def bring_up(fleet: Fleet, say: demo.Say) -> None:
    fleet.down()
    fleet.up(Options(workers=1, profile=demo.PROFILE, data_plane=False, token_webhook=TOKEN_WEBHOOK), say)


async def shown(fleet: Fleet, hub: demo.Hub, aws: AwsServer, display: demo.Display, watch: Watch) -> None:
    with display.step("Our kinds, the chart's accounts and policies, and the operator with the keys of an account"):
        await hub.install(demo.definitions())
        demo.fill(demo.mirror_of(fleet), CHARTS)
        demo.start(fleet, ENVIRONMENT)
        demo.apply(fleet, "-", documents=orjson.dumps(credentials()).decode())
    with display.step(f"kubectl apply: InferenceCluster {CLUSTER}, source EKS") as say:
        demo.apply(fleet, PLATFORM)
        await until_ready(hub, watch, say)
    with display.step("A model there, and a question through the hub gateway") as say:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": demo.NAMESPACE}}
        demo.apply(fleet, "-", documents=orjson.dumps(namespace).decode())
        demo.apply(fleet, demo.MODEL)
        await hub.ready(say, "modelservices", demo.NAME, namespace=demo.NAMESPACE)
        address = (await hub.get("modelservices", demo.NAME, demo.NAMESPACE))["status"]["address"]
        reply = await demo.first_reply(f"{demo.outside(fleet, address)}/v1/chat/completions", say)
        say(f"answered by pod {reply.pod} on {reply.cluster}: {reply.text}")
    made = len(aws.left)
    with display.step("kubectl delete: the model, then the cluster") as say:
        for kind in ("modelservice", "modeldeployment"):
            fleet.kubectl("hub", "-n", demo.NAMESPACE, "delete", kind, demo.NAME)
        await until_unused(hub)
        fleet.kubectl("hub", "delete", "inferencecluster", CLUSTER, "--wait=false")
        await until_gone(hub, watch, say)
    print(f"\nAWS had {made} resources, made by {aws.changes} calls; it has {len(aws.left)} now")
    if aws.left:
        raise demo.DemoError(f"left on AWS: {', '.join(aws.left)}")


async def until_ready(hub: demo.Hub, watch: Watch, say: demo.Say) -> None:
    deadline, said = time.monotonic() + MOST, ""
    while note := demo.unready(await hub.get("inferenceclusters", CLUSTER)):
        await watch.tell()
        if (news := await hub.installing()) and news != said:
            say(said := news)
        await later(hub, deadline, note)


async def until_unused(hub: demo.Hub) -> None:
    """Wait until no replica is on the cluster: else nobody may delete it."""
    deadline = time.monotonic() + MOST
    while (await hub.get("inferenceclusters", CLUSTER)).get("status", {}).get("replicas"):
        await later(hub, deadline, "replicas are placed on it")


async def until_gone(hub: demo.Hub, watch: Watch, say: demo.Say) -> None:
    deadline, said = time.monotonic() + MOST, ""
    while True:
        try:
            found = await hub.get("inferenceclusters", CLUSTER)
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
    await asyncio.sleep(demo.LOOK_AGAIN)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        asyncio.run(run(Console()))
    except ERRORS as error:
        sys.exit(f"demo-cloud: {error or type(error).__name__}")


if __name__ == "__main__":
    main()
