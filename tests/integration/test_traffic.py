"""Who answers: shares of requests, clusters side by side, and providers outside the fleet."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from localfleet.fleet import path
from tests.integration.harness import Stage, until
from tests.integration.kinds import deployment, endpoint, secret, service
from tests.integration.watcher import Watcher
from tests.support.manifests import ROOT

pytestmark = pytest.mark.fleet

REQUESTS = 400
AT_ONCE = 10
# With one degree of freedom, chance alone exceeds this once in a thousand runs.
CHI_SQUARE_LIMIT = 10.83
OUTSIDE = "10.90.0.1"  # the fleet's own end of the hub's wire: no cluster's address
PORTS = itertools.count(18000)


async def asked(stage: Stage, space: str, name: str, count: int) -> Counter[str]:
    """Who answers so many requests, by deployment and cluster."""
    found: Counter[str] = Counter()
    for _ in range(count // AT_ONCE):
        for reply in await asyncio.gather(*(stage.chat(space, name) for _ in range(AT_ONCE))):
            assert reply.status == 200, reply.text
            found[reply.pod.partition("/")[2].partition("-")[0]] += 1
            found[reply.cluster] += 1
    return found


def chi_square(found: Counter[str], shares: dict[str, float]) -> float:
    expected = {who: REQUESTS * share for who, share in shares.items()}
    assert sum(found[who] for who in shares) == REQUESTS, found
    return sum((found[who] - count) ** 2 / count for who, count in expected.items())


async def test_a_canary_gets_its_share_of_requests(stage: Stage, space: str, measured: Callable[[str], None]) -> None:
    await stage.hub.apply(
        deployment(space, "stable", replicas=2),
        deployment(space, "canary"),
        service(space, "chat", (9, {"model": "stable"}), (1, {"model": "canary"})),
    )
    for name in ("stable", "canary"):
        await stage.hub.ready("ModelDeployment", name, space)

    async def all_three() -> bool:
        found = await stage.hub.get("ModelService", "chat", space)
        return len((found or {}).get("status", {}).get("endpoints", [])) == 3

    await until("three endpoints behind the URL", all_three)
    await stage.hub.ready("ModelService", "chat", space)
    await until("the canary to answer", lambda: answers(stage, space, "chat", "canary"))
    found = await asked(stage, space, "chat", REQUESTS)
    statistic = chi_square(found, {"stable": 0.9, "canary": 0.1})
    measured(f"canary at 10%: {found['canary']} of {REQUESTS} requests (chi-square {statistic:.2f})")
    assert statistic < CHI_SQUARE_LIMIT


async def answers(stage: Stage, space: str, name: str, who: str) -> bool:
    found = await asyncio.gather(*(stage.chat(space, name) for _ in range(20)))
    return any(who in reply.pod or who == reply.cluster for reply in found)


async def test_two_clusters_are_compared_side_by_side(
    stage: Stage, space: str, measured: Callable[[str], None]
) -> None:
    shares = [(3, "worker-1"), (1, "worker-2")]
    chosen = [(weight, {"model": "model", "modelplane.ai/cluster": name}) for weight, name in shares]
    await stage.hub.apply(deployment(space, replicas=2), service(space, "model", *chosen))
    await stage.serving(space, 2)
    await stage.hub.ready("ModelService", "model", space)
    for _, name in shares:
        await until(f"{name} to answer", lambda name=name: answers(stage, space, "model", name))
    found = await asked(stage, space, "model", REQUESTS)
    statistic = chi_square(found, {"worker-1": 0.75, "worker-2": 0.25})
    measured(f"3 to 1 over two clusters: {found['worker-1']} to {found['worker-2']} (chi-square {statistic:.2f})")
    assert statistic < CHI_SQUARE_LIMIT


@asynccontextmanager
async def provider(stage: Stage, name: str, *certificate: Path) -> AsyncGenerator[int]:
    """A provider outside all clusters; answers its port."""
    port = next(PORTS)
    command = [str(ROOT / ".venv/bin/python"), "-m", "tests.integration.provider", str(port), name]
    process = await asyncio.create_subprocess_exec(
        *stage.fleet.inside([*command, *map(str, certificate)]),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PATH": path()},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
        yield port
    finally:
        process.kill()
        await process.wait()


async def test_a_provider_outside_is_reached_by_its_own_path_and_key(
    stage: Stage, space: str, watcher: Watcher
) -> None:
    key = "sk-canary-51f2c0aa"
    watcher.hide(key)
    async with provider(stage, "groq") as port:
        credentials = {"secretRef": {"name": "groq", "key": "token"}}
        url = f"http://{OUTSIDE}:{port}"
        await stage.hub.apply(
            secret(space, "groq", token=key),
            endpoint(space, "groq", url, rewrite="/openai/", credentials=credentials),
            service(space, "groq"),
        )
        reply = json.loads((await stage.answered(space, "groq")).text)
    assert reply["provider"] == "groq"
    assert reply["path"] == "/openai/v1/chat/completions"
    assert reply["headers"]["Authorization"] == f"Bearer {key}"


async def test_a_provider_takes_over_while_there_is_no_replica(stage: Stage, space: str) -> None:
    async with provider(stage, "overflow") as port:
        await stage.hub.apply(
            deployment(space, replicas=0),
            endpoint(space, "overflow", f"http://{OUTSIDE}:{port}"),
            service(space, "both", (9, {"model": "model"}), (1, {"model": "overflow"})),
        )
        assert "overflow" in (await stage.answered(space, "both")).text


async def test_https_verifies_the_name_and_who_vouches_for_it(stage: Stage, space: str, tmp_path: Path) -> None:
    """Whom the gateway trusts is the gateway's own: the machine's authorities, and a stranger's is not among them."""
    authority, certificate = trustme.CA(), tmp_path / "provider.pem"
    authority.issue_cert("provider.test").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    async with provider(stage, "secure", certificate) as port:
        url = f"https://{OUTSIDE}:{port}"
        await stage.hub.apply(endpoint(space, "secure", url, hostname="provider.test"), service(space, "secure"))
        await stage.hub.ready("ModelService", "secure", space)

        async def refused() -> int | None:
            status = (await stage.chat(space, "secure")).status
            return status if status in {500, 502} else None  # and not 404, before the gateway knows the route

        await until("the gateway to refuse a certificate that nobody vouches for", refused)
        async with trusting(stage, authority):
            assert json.loads((await stage.answered(space, "secure")).text)["provider"] == "secure"


@asynccontextmanager
async def trusting(stage: Stage, authority: trustme.CA) -> AsyncGenerator[None]:
    """The hub's gateway trusts one more authority, as an administrator would have it do."""
    name, where = "more-authorities", ("Deployment", "traefik", "traefik-system")
    pem = authority.cert_pem.bytes().decode()
    await stage.hub.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": where[2]},
            "data": {"authority.pem": pem},
        }
    )
    before = await stage.hub.get(*where)
    assert before
    kept = before["spec"]["template"]["spec"]
    (container,) = kept["containers"]
    trust = {
        **container,
        "env": [*container.get("env", []), {"name": "SSL_CERT_DIR", "value": "/authorities"}],
        "volumeMounts": [*container.get("volumeMounts", []), {"name": name, "mountPath": "/authorities"}],
    }
    volumes = [*kept.get("volumes", []), {"name": name, "configMap": {"name": name}}]
    try:
        await stage.hub.patch(*where, spec={"template": {"spec": {"containers": [trust], "volumes": volumes}}})
        yield
    finally:
        again = {"containers": [container], "volumes": kept.get("volumes")}
        await stage.hub.patch(*where, spec={"template": {"spec": again}})
        await stage.hub.delete("ConfigMap", name, where[2])

        def alone(manifest: dict[str, object]) -> bool:
            status = manifest.get("status")
            return isinstance(status, dict) and status.get("replicas") == 1 and status.get("readyReplicas") == 1

        await stage.hub.wait(*where, holds=alone, what="to run one pod again")
