"""`apply-to-workload`: how soon a deployment that is applied has its workload object."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence

from benchmarks.live import testbed as testbeds
from benchmarks.live.floor import floor
from benchmarks.live.testbed import Testbed
from benchmarks.report import Figure, percentile
from localfleet.kubeclient import Key, Manifest

DEPLOYMENTS = "/apis/apps/v1/deployments"
DIRECT = "c0000"
NAME = "apply-to-workload"


def _figures(size: int, what: str, seconds: Sequence[float]) -> Iterator[Figure]:
    """Return the median, the 99th percentile and the worst, in milliseconds."""
    for name, value in (("p50", percentile(seconds, 50)), ("p99", percentile(seconds, 99)), ("worst", max(seconds))):
        yield Figure(NAME, size, f"{what}: {name}", round(value * 1000, 1), "ms")


class FirstTimes:
    """When the first object of a type was there for each deployment, whose name its own begins with."""

    def __init__(self, objects: testbeds.WatchedType) -> None:
        self.at: dict[str, float] = {}
        self._objects = objects
        objects.listen(self._note)

    def _note(self, key: Key, manifest: Manifest | None) -> None:
        if manifest is not None:
            self.at.setdefault(key[1][: len("model-00000")], time.monotonic())

    async def wait_for_all(self, names: Sequence[str]) -> None:
        await self._objects.wait_for(
            f"all of {len(names)} deployments", lambda _: all(name in self.at for name in names)
        )


async def _apply_direct_cluster(testbed: Testbed) -> None:
    """Apply one large cluster, whose API server the operator reaches directly."""
    await testbed.apply(
        [testbed.kubeconfig_secret(DIRECT, testbed.world_server.kubeconfig.read_text()), testbeds.cluster(DIRECT, 1000)]
    )


BATCHES = 3  # at least


async def measure_applied(size: int, deployments: int) -> AsyncIterator[Figure]:
    """Apply so many deployments at once, again and again, with an idle operator and one cluster."""
    batches = max(deployments // size, BATCHES)
    async with testbeds.start_testbed(clusters=0) as testbed:
        await _apply_direct_cluster(testbed)
        with testbed.operator() as operator:
            await testbed.wait_until_up(operator, 1)
            replicas, workloads = (
                FirstTimes(testbed.watch_own("modelreplicas")),
                FirstTimes(testbed.watch(DEPLOYMENTS, remote=True)),
            )
            began: dict[str, float] = {}
            before = operator.usage()
            for batch in range(batches):
                wanted = [testbeds.deployment(batch * size + number, replicas=1) for number in range(size)]
                for manifest in wanted:
                    began[manifest["metadata"]["name"]] = time.monotonic()
                await testbed.apply(wanted)
                await workloads.wait_for_all([*began])
                await testbed.wait_until_ready("modeldeployments", len(began))
            await testbed.wait_until_quiet(operator)
            after = operator.usage()
        for what, found in (("to the ModelReplica", replicas), ("to the workload object", workloads)):
            for figure in _figures(size, f"from apply {what}", [found.at[name] - began[name] for name in began]):
                yield figure
        count = len(began)
        asked = (after.reads - before.reads).total() / count
        yield Figure(NAME, size, "applied in all", count, "deployments")
        yield Figure(NAME, size, "CPU for each", round(after.cpu_since(before) / count * 1000, 2), "ms")
        yield Figure(NAME, size, "writes for each", round((after.writes - before.writes).total() / count, 2), "writes")
        yield Figure(NAME, size, "reads for each, pings and all", round(asked, 2), "requests")
        for figure in await floor(NAME, size, testbed.hub):
            yield figure
