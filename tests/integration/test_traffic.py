"""Who answers: shares of requests, clusters side by side, providers outside the fleet; and what may go wrong of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from localfleet.fleet import path
from localfleet.kubeclient import entries
from modelplane_operator.clusters.cluster.cluster_gateway import STEERING
from modelplane_operator.routing.gateway.gateway_pods import DRAIN
from tests.integration.harness import SYSTEM, Stage, remote, until
from tests.integration.kinds import deployment, endpoint, namespace, secret, service
from tests.integration.watcher import Watcher
from tests.support.manifests import ROOT, Manifest

pytestmark = pytest.mark.fleet

REQUESTS = 400
AT_ONCE = 10
# Traefik draws no lots: it deals requests out in turn, by weight, so that of any stretch of requests a backend gets its
# share to within one. Every configuration that it loads begins the turn anew, which may give one more or less.
RELOADS = 4
OUTSIDE = "10.90.0.1"  # the fleet's own end of the hub's wire: no cluster's address
PORTS = itertools.count(18000)
HUB_GATEWAY = ("Deployment", "traefik", "traefik-system")
FLAPS = 3
POLICIES = ("ClientTrafficPolicy", "BackendTrafficPolicy")
OF_THE_GATEWAY = "gateway.envoyproxy.io/owning-gateway-name=inference-gateway"


async def asked(stage: Stage, space: str, name: str, count: int) -> Counter[str]:
    """Who answers so many requests, by deployment and cluster."""
    found: Counter[str] = Counter()
    for _ in range(count // AT_ONCE):
        for reply in await asyncio.gather(*(stage.chat(space, name) for _ in range(AT_ONCE))):
            assert reply.status == 200, reply.text
            found[reply.pod.partition("/")[2].partition("-")[0]] += 1
            found[reply.cluster] += 1
    return found


async def shared(stage: Stage, space: str, name: str, shares: dict[str, float]) -> str:
    """Check who gets which share of requests; answers how they were shared, in words."""
    found = await asked(stage, space, name, REQUESTS)
    counts = {who: found[who] for who in shares}
    assert sum(counts.values()) == REQUESTS, found
    for who, share in shares.items():
        assert abs(counts[who] - REQUESTS * share) <= 1 + RELOADS, counts
    return f"{' to '.join(str(count) for count in counts.values())} of {REQUESTS} for {' and '.join(counts)}"


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
    await until("all three to answer", lambda: all_answer(stage, space, "chat", 3))
    measured(await shared(stage, space, "chat", {"stable": 0.9, "canary": 0.1}))


async def all_answer(stage: Stage, space: str, name: str, count: int) -> bool:
    """Whether the gateway follows the route to its last backend: all the weights of a route come at once."""
    found = await asyncio.gather(*(stage.chat(space, name) for _ in range(4 * AT_ONCE)))
    return len({reply.pod for reply in found if reply.status == 200}) == count


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
    await until("both to answer", lambda: all_answer(stage, space, "model", 2))
    measured(await shared(stage, space, "model", {"worker-1": 0.75, "worker-2": 0.25}))


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


@pytest.mark.slow
async def test_a_provider_takes_over_while_there_is_no_replica(stage: Stage, space: str) -> None:
    async with provider(stage, "overflow") as port:
        await stage.hub.apply(
            deployment(space, replicas=0),
            endpoint(space, "overflow", f"http://{OUTSIDE}:{port}"),
            service(space, "both", (9, {"model": "model"}), (1, {"model": "overflow"})),
        )
        assert "overflow" in (await stage.answered(space, "both")).text
    # It is gone, and takes no connections any more.
    refused = await stage.hub.says("Ready=Unknown/Unreachable", "ModelEndpoint", "overflow", space)
    assert refused["message"] == f"Host {OUTSIDE} refuses connections to port {port}"
    await stage.hub.says("Answering=False/NotAnswered", "ModelService", "both", space)


async def test_https_verifies_the_name_and_who_vouches_for_it(stage: Stage, space: str, tmp_path: Path) -> None:
    """Whom the gateway trusts is the gateway's own: the machine's authorities, and a stranger's is not among them."""
    authority, certificate = trustme.CA(), tmp_path / "provider.pem"
    authority.issue_cert("provider.test").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    async with provider(stage, "secure", certificate) as port:
        url = f"https://{OUTSIDE}:{port}"
        await stage.hub.apply(endpoint(space, "secure", url, hostname="provider.test"), service(space, "secure"))
        await stage.hub.says("RoutingReady=True", "ModelService", "secure", space)  # Ready it is once it answers

        async def refused() -> int | None:
            status = (await stage.chat(space, "secure")).status
            return status if status in {500, 502} else None  # and not 404, before the gateway knows the route

        await until("the gateway to refuse a certificate that nobody vouches for", refused)
        async with trusting(stage, authority):
            assert json.loads((await stage.answered(space, "secure")).text)["provider"] == "secure"


async def test_no_client_steers_what_is_behind_the_gateway_of_a_cluster(stage: Stage, hub_namespace: str) -> None:
    """Past the hub, even: by these headers a picker names the pods that a request goes to, or any other address.

    However they are spelt, and however often they are there.
    """
    worker, home, path = stage.workers["worker-1"], f"{hub_namespace}-behind", f"/{hub_namespace}/behind/"
    url = f"http://127.0.0.1:{stage.fleet.cluster(worker.name)['ports']['gateway']}{path}"
    spelt = (spell(name) for name in STEERING for spell in (str.lower, str.title, str.upper))
    steering = [(name, "10.96.0.1:443") for name in spelt]
    async with provider(stage, "behind") as port:
        try:
            await worker.apply(namespace(home), *behind(home, path, port))

            async def echoed() -> dict[str, str] | None:
                async with stage.session.post(url, headers=[*steering, ("X-Mine", "kept")]) as answer:
                    return json.loads(await answer.text())["headers"] if answer.status == 200 else None

            found = {name.lower() for name in await until("the gateway to know the route", echoed)}
            alike = STEERING[0].replace("-", "_")  # which some programs read as the same
            async with stage.session.post(url, headers={alike: "10.96.0.1:443"}) as answer:
                assert answer.status == 200
                assert alike not in {name.lower() for name in json.loads(await answer.text())["headers"]}
        finally:
            await worker.delete("Namespace", home)
    assert "x-mine" in found
    assert found & set(STEERING) == set()


async def test_the_gateway_of_a_cluster_is_set_up_for_long_answers(stage: Stage) -> None:
    """Envoy Gateway has taken all that it is told, and its Envoys have the time to see answers through."""
    worker = stage.workers["worker-1"]

    async def accepted() -> bool:
        found = [await worker.list(kind, SYSTEM) for kind in POLICIES]
        said = [entries(policy, "status", "ancestors") for policies in found for policy in policies]
        told = {(c["type"], c["status"]) for ancestors in said for one in ancestors for c in one["conditions"]}
        return all(found) and all(said) and ("Accepted", "True") in told and ("Accepted", "False") not in told

    async def drains() -> bool:
        (envoys,) = await worker.list("Deployment", "envoy-gateway-system", OF_THE_GATEWAY)
        pod = envoys["spec"]["template"]["spec"]
        (envoy,) = (one for one in pod["containers"] if one["name"] == "envoy")
        told = " ".join(envoy["args"]).replace("=", " ")
        return f"--drain-time-s {DRAIN}" in told and pod["terminationGracePeriodSeconds"] > DRAIN

    await until("all policies to be accepted", accepted)
    await until("the Envoys to drain for as long as answers take", drains)


def behind(home: str, path: str, port: int) -> list[Manifest]:
    """A route of a cluster's gateway to a provider."""
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    parent = {"name": "inference-gateway", "namespace": SYSTEM}
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "backendRefs": [{"name": "it", "port": port}]}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "it", "namespace": home},
            "spec": {"clusterIP": "None", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "it", "namespace": home, "labels": {"kubernetes.io/service-name": "it"}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [OUTSIDE], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "it", "namespace": home},
            "spec": {"parentRefs": [parent], "rules": [rule]},
        },
    ]


@asynccontextmanager
async def trusting(stage: Stage, authority: trustme.CA) -> AsyncGenerator[None]:
    """The hub's gateway trusts one more authority, as an administrator would have it do."""
    name, where = "more-authorities", HUB_GATEWAY
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

        await stage.hub.wait(*where, holds=alone, what="to run one pod again")


def alone(manifest: Manifest) -> bool:
    """Whether a Deployment has one pod, which is ready and as the Deployment is now."""
    status = manifest.get("status", {})
    current = status.get("observedGeneration") == manifest["metadata"]["generation"]
    return current and status.get("replicas") == status.get("updatedReplicas") == status.get("readyReplicas") == 1


# What goes wrong (F19) ------------------------------------------------------------------------------------------------


@pytest.fixture
async def two(stage: Stage, space: str) -> None:
    """A model that answers from both clusters."""
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    await stage.hub.ready("ModelService", "model", space)
    for name in stage.workers:
        await until(f"{name} to answer", lambda name=name: answers(stage, space, "model", name))


async def standing(stage: Stage, space: str) -> dict[str, str]:
    """What is to stay as it is, whoever answers: by name, which object that is; and the URL."""
    (found,) = await stage.hub.list("ModelService", space)
    kept = [one for kind in ("ModelReplica", "HTTPRoute") for one in await stage.hub.list(kind, space)]
    uids = {f"{one['kind']} {one['metadata']['name']}": one["metadata"]["uid"] for one in [found, *kept]}
    pods = {name: one["metadata"]["uid"] for name, one in (await stage.pods(space)).items()}
    return {**uids, **pods, "url": found["status"]["address"]}


async def hang(stage: Stage, space: str, worker: str, *, hangs: bool) -> None:
    """Have the engines of a cluster answer nothing any more, not even whether they are well; or answer again."""
    for place in await stage.pods(space, worker):
        annotations = {"localfleet.dev/hang": str(hangs).lower()}
        await stage.workers[worker].patch(
            "Pod", place.partition("/")[2], remote(space), metadata={"annotations": annotations}
        )


async def backends(stage: Stage, space: str) -> set[str]:
    """The clusters whose endpoints get requests, as the service says."""
    (found,) = await stage.hub.list("ModelService", space)
    placed = {one["metadata"]["name"]: one["spec"]["clusterName"] for one in (await stage.replicas(space)).values()}
    return {placed[one["name"]] for one in found.get("status", {}).get("endpoints", [])}


@pytest.mark.usefixtures("two")
async def test_an_endpoint_that_comes_and_goes_gets_requests_while_it_is_there(stage: Stage, space: str) -> None:
    before = await standing(stage, space)
    for _ in range(FLAPS):
        await hang(stage, space, "worker-1", hangs=True)
        await stage.hub.says("Ready=False", "ModelDeployment", "model", space)

        async def one_left() -> bool:
            return await backends(stage, space) == {"worker-2"}

        await until("the endpoint to leave rotation", one_left)
        await until("the gateway to follow", lambda: all_say(stage, space, 200))
        assert (await asked(stage, space, "model", 4 * AT_ONCE))["worker-2"] == 4 * AT_ONCE
        await hang(stage, space, "worker-1", hangs=False)
        await until("it to answer again", lambda: answers(stage, space, "model", "worker-1"))
        await stage.hub.ready("ModelDeployment", "model", space)
    assert await standing(stage, space) == before


@pytest.mark.usefixtures("two")
async def test_a_model_without_any_replica_that_answers_keeps_its_url_and_says_so(stage: Stage, space: str) -> None:
    before = await standing(stage, space)
    for name in stage.workers:
        await hang(stage, space, name, hangs=True)
    await stage.hub.says("EndpointsResolved=False/NoEndpoints", "ModelService", "model", space)
    await stage.hub.says("Ready=False", "ModelService", "model", space)
    await stage.hub.says("Ready=False", "ModelDeployment", "model", space)
    await until("the gateway to say 503", lambda: all_say(stage, space, 503))
    assert await standing(stage, space) == before
    for name in stage.workers:
        await hang(stage, space, name, hangs=False)
    for name in stage.workers:
        await until(f"{name} to answer again", lambda name=name: answers(stage, space, "model", name))
    await stage.hub.ready("ModelService", "model", space)
    await stage.hub.ready("ModelDeployment", "model", space)
    assert await standing(stage, space) == before


async def all_say(stage: Stage, space: str, status: int) -> bool:
    """Whether a good many requests at a time are answered in this way, and soon."""
    try:
        replies = await asyncio.gather(*(stage.chat(space, seconds=3) for _ in range(2 * AT_ONCE)))
    except TimeoutError:
        return False
    return all(reply.status == status for reply in replies)


@pytest.mark.usefixtures("two")
async def test_a_change_of_the_route_alone_loses_no_request(
    stage: Stage, space: str, measured: Callable[[str], None]
) -> None:
    changes = [{"worker-1": 3, "worker-2": 1}, {"worker-2": 1}, {"worker-1": 1}, {"worker-1": 1, "worker-2": 1}]
    async with stage.load(space) as load:
        for shares in changes:
            chosen = [(weight, {"model": "model", "modelplane.ai/cluster": name}) for name, weight in shares.items()]
            await stage.hub.apply(service(space, "model", *chosen))

            async def followed(shares: dict[str, int] = shares) -> bool:
                """Streams that began before the change may still come to their end."""
                latest = len(load.replies)
                await until("more answers", lambda: len(load.replies) >= latest + 4 * AT_ONCE)
                return {reply.cluster for reply in load.replies[-2 * AT_ONCE :]} == shares.keys()

            await until(f"answers of {' and '.join(shares)} only", followed)
    measured(f"{len(load.replies)} answers while a route changed {len(changes)} times: {dict(load.clusters)}")
    assert load.failures == []


@pytest.mark.usefixtures("two")
async def test_a_gateway_that_is_started_again_serves_as_before_without_a_write(
    stage: Stage, space: str, watcher: Watcher, measured: Callable[[str], None]
) -> None:
    """What it was answering breaks off with it: the claim is about afterwards."""
    before = await standing(stage, space)
    await until("the operator to rest", watcher.rests)
    written = await stage.operator.writes()
    (old,) = await stage.hub.list("Pod", HUB_GATEWAY[2])
    await stage.hub.delete("Pod", old["metadata"]["name"], HUB_GATEWAY[2])
    began = time.monotonic()
    await stage.hub.gone("Pod", old["metadata"]["name"], HUB_GATEWAY[2])
    await stage.hub.wait(*HUB_GATEWAY, holds=alone, what="to have a pod again")
    await stage.answered(space)
    measured(f"from the end of the gateway's pod to an answer through its next: {time.monotonic() - began:.1f} s")
    found = await asked(stage, space, "model", 4 * AT_ONCE)
    assert found["worker-1"] and found["worker-2"]
    await until("the operator to rest", watcher.rests)
    assert await stage.operator.writes() == written
    assert await standing(stage, space) == before
