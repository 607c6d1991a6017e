"""The hub's gateway and those of clusters: what passes between them, and who else is answered there.

A running fleet gets there and renews all that is needed for it while requests are sent all the time; then it goes
back.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from localfleet.fleet import HUB
from modelplane_operator.api import labels, names
from tests.integration.harness import SYSTEM, WORKERS, Load, Stage, condition, path_of, until
from tests.integration.kinds import deployment, endpoint, service
from tests.support.manifests import Manifest

pytestmark = pytest.mark.fleet

# Says in a line how a gateway takes a connection, and what it answers to a request for a model.
ASK = """
import socket, ssl, sys
scheme, address, name, path, trusted, *shown = sys.argv[1:]
try:
    wire = socket.create_connection((address, 443 if scheme == "https" else 80), timeout=5)
    if scheme == "https":
        context = ssl.create_default_context(cafile=trusted)
        if shown:
            context.load_cert_chain(shown[0])
        wire = context.wrap_socket(wire, server_hostname=name)
    wire.sendall(f"GET {path} HTTP/1.1\\r\\nHost: any\\r\\nConnection: close\\r\\n\\r\\n".encode())
    print("answered", (wire.recv(4096) or b"nothing").split(b"\\r\\n")[0].decode())
except OSError as error:
    print("refused", repr(error))
"""


async def ask(stage: Stage, scheme: str, worker: str, path: str, *files: Path) -> str:
    """What a stranger in the hub's network gets from the gateway of a cluster."""
    found = await stage.hub.get("InferenceCluster", worker)
    assert found is not None
    address = found["status"]["gateway"]["address"]
    argv = [sys.executable, "-c", ASK, scheme, address, names.server_name(worker), path, *map(str, files)]
    process = await asyncio.create_subprocess_exec(
        *stage.fleet.inside(argv, HUB), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return out.decode().strip()


async def mutual_tls(stage: Stage, asked: str, status: str) -> None:
    await stage.hub.patch("InferenceGateway", "default", spec={"mutualTLS": asked})
    for worker in WORKERS:
        await stage.hub.says(f"GatewaySecured={status}", "InferenceCluster", worker)


@asynccontextmanager
async def secured(stage: Stage, space: str) -> AsyncGenerator[Load]:
    """The fleet with mutual TLS on, under load, of which no request may be lost; and without again afterwards."""
    try:
        async with stage.load(space) as load:
            await mutual_tls(stage, "Always", "True")
            yield load
            await asyncio.sleep(5)
        assert not load.failures, load.failures[:5]
        assert len(load.clusters) == len(WORKERS)
    finally:
        await mutual_tls(stage, "Never", "False")
        await until("endpoints to lead by http again", lambda: led(stage, space, "http"))
        await mutual_tls(stage, "Auto", "False")  # which goes on with what was


async def led(stage: Stage, space: str, scheme: str) -> bool:
    found = await stage.hub.list("ModelEndpoint", space)
    urls = [one.get("status", {}).get("routing", {}).get("url", "") for one in found]
    return bool(urls) and all(url.startswith(f"{scheme}:") for url in urls)


async def everywhere(stage: Stage, space: str) -> dict[str, str]:
    """A model on each cluster, with the path of a replica there."""
    await stage.hub.apply(*(deployment(space, f"on-{one}", labels={"model": "model"}, **at(one)) for one in WORKERS))
    await stage.hub.apply(service(space, "model", (1, {"model": "model"})))
    for worker in WORKERS:
        await stage.hub.ready("ModelDeployment", f"on-{worker}", space)
    await stage.hub.ready("ModelService", "model", space)
    reached = set[str]()

    async def all_of_them() -> bool:
        reply = await stage.answered(space)
        reached.add(reply.cluster)
        return len(reached) == len(WORKERS)

    await until("each cluster to have answered", all_of_them)
    paths: dict[str, str] = {}
    for worker in WORKERS:
        for name in await stage.replicas(space, f"on-{worker}"):
            paths[worker] = f"/{space}/{name}/v1/models"
    return paths


def at(worker: str) -> Manifest:
    return {"clusterSelector": {"matchLabels": {"site": worker}}}


@pytest.mark.slow
async def test_gateways_answer_nobody_but_their_hubs_and_all_of_it_is_renewed_under_load(
    stage: Stage, space: str, neighbour: str, tmp_path: Path
) -> None:
    """One switch for all of it, as each takes some minutes."""
    paths = await everywhere(stage, space)
    stranger = trustme.CA()
    foreign = tmp_path / "foreign.pem"
    stranger.issue_cert(names.HUB_NAME).private_key_and_cert_chain_pem.write_to_path(str(foreign))
    trusted = tmp_path / "trusted.pem"
    for worker in WORKERS:
        # What anybody could do before, and what the rest of this test is about.
        assert await ask(stage, "http", worker, paths[worker], trusted) == "answered HTTP/1.1 200 OK"
    async with secured(stage, space) as load:
        ours = await held(stage, HUB, tmp_path)
        trusted.write_text((await pem(stage, HUB))["ca.crt"])
        for worker, other in zip(WORKERS, reversed(WORKERS), strict=True):
            closed = f"http at {worker} to be closed"
            await until(closed, lambda worker=worker: refused(stage, "http", worker, paths[worker], trusted))
            assert await ask(stage, "https", worker, paths[worker], trusted, ours) == "answered HTTP/1.1 200 OK"
            assert "ALERT_CERTIFICATE_REQUIRED" in (await ask(stage, "https", worker, paths[worker], trusted)).upper()
            assert "refused" in await ask(stage, "https", worker, paths[worker], trusted, foreign)
            # Another cluster's certificate, which is of the same authority.
            theirs = await held(stage, other, tmp_path)
            assert "refused" in await ask(stage, "https", worker, paths[worker], trusted, theirs)
        assert await led(stage, space, "https")
        await no_way_in_for_tenants(stage, neighbour, space, paths)
        await answered(load)
        await renewed_under(load, stage)


async def test_a_certificate_that_somebody_replaces_is_told_and_issued_again(stage: Stage, space: str) -> None:
    await everywhere(stage, space)
    worker = WORKERS[0]
    stranger = trustme.CA()
    stolen = stranger.issue_cert("stranger.example.com")
    data = {
        "tls.crt": encoded(stolen.cert_chain_pems[0].bytes()),
        "tls.key": encoded(stolen.private_key_pem.bytes()),
        "ca.crt": encoded(stranger.cert_pem.bytes()),
    }
    try:
        await mutual_tls(stage, "Always", "True")
        before = await shown(stage)
        for cluster, kind, name in ((HUB, "InferenceGateway", "default"), (worker, "InferenceCluster", worker)):
            where = stage.hub if cluster == HUB else stage.workers[cluster]
            # `kubectl edit`, of one field too; then `kubectl replace`, which takes our labels away.
            await where.patch("Secret", names.GATEWAY_CERTIFICATE, SYSTEM, data=data)
            await until(f"{kind} {name} to say it", lambda kind=kind, name=name: replacements(stage, kind, name))
            issued = await mended(stage, cluster, before[cluster], stranger)
            await where.patch("Secret", names.GATEWAY_CERTIFICATE, SYSTEM, data={"tls.key": data["tls.key"]})
            issued = await mended(stage, cluster, issued, stranger)
            found = await where.get("Secret", names.GATEWAY_CERTIFICATE, SYSTEM) or {}
            metadata = {key: found["metadata"][key] for key in ("name", "namespace")}
            bare = {**found, "metadata": metadata, "data": data}
            await where.client.request("PUT", path_of("Secret", names.GATEWAY_CERTIFICATE, SYSTEM), bare)
            await mended(stage, cluster, issued, stranger)
            await stage.hub.ready(kind, name)
        await stage.answered(space)
    finally:
        await mutual_tls(stage, "Never", "False")
        await until("endpoints to lead by http again", lambda: led(stage, space, "http"))
        await mutual_tls(stage, "Auto", "False")


async def mended(stage: Stage, cluster: str, before: dict[str, str], stranger: trustme.CA) -> dict[str, str]:
    """The certificate of a gateway once it is a new one of the operator's, with its key."""

    async def look() -> dict[str, str] | None:
        found = await pem(stage, cluster)
        other = all(found.get(key) != before[key] for key in ("tls.crt", "tls.key"))
        return found if other and found["ca.crt"] != stranger.cert_pem.bytes().decode() and paired(found) else None

    return await until(f"another certificate on {cluster}", look)


def paired(found: dict[str, str]) -> bool:
    """Whether the key belongs to the certificate."""
    certificate = x509.load_pem_x509_certificate(found["tls.crt"].encode())
    return load_pem_private_key(found["tls.key"].encode(), None).public_key() == certificate.public_key()


async def replacements(stage: Stage, kind: str, name: str) -> bool:
    return any(
        one["reason"] == "CertificateReplaced"
        and (one["type"], one["involvedObject"]["kind"], one["involvedObject"]["name"]) == ("Warning", kind, name)
        and "stop what writes that Secret" in one["message"]
        for one in await stage.hub.list("Event")
    )


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def no_way_in_for_tenants(stage: Stage, neighbour: str, space: str, paths: dict[str, str]) -> None:
    """An endpoint that a tenant writes does not go to a cluster with the hub's certificate."""
    worker = WORKERS[0]
    found = await stage.hub.get("InferenceCluster", worker)
    assert found is not None
    url, name = f"https://{found['status']['gateway']['address']}", names.server_name(worker)
    prefix = paths[worker].removesuffix("v1/models")
    for number, stolen in enumerate(
        (
            endpoint(neighbour, "theirs", url, prefix, hostname=name),
            endpoint(neighbour, "named", "https://34.55.100.10", prefix, hostname=name),
            endpoint(neighbour, "relay", f"http://relay.{names.INTERNAL_DOMAIN}:8444", prefix, hostname=name),
        )
    ):
        await stage.hub.apply(stolen, service(neighbour, f"thief-{number}", (1, {"model": stolen["metadata"]["name"]})))
        await stage.hub.says("RoutingReady=False/InvalidURL", "ModelEndpoint", stolen["metadata"]["name"], neighbour)
        assert (
            not await stage.hub.list("HTTPRoute", neighbour)
            or (await stage.chat(neighbour, f"thief-{number}")).status != 200
        )


async def renewed_under(load: Load, stage: Stage) -> None:
    """Certificates, then their authority: a second one is trusted, signs, and the first one goes."""
    before = await shown(stage)
    await annotate(stage, HUB, names.GATEWAY_CERTIFICATE, labels.RENEW_AFTER, ago(days=0))
    for worker in WORKERS:
        await annotate(stage, worker, names.GATEWAY_CERTIFICATE, labels.RENEW_AFTER, ago(days=0))
    await kick(stage)
    leaves = await renewed(stage, "new certificates", before, "tls.crt")
    await answered(load)
    first, second = names.gateway_authority(1), names.gateway_authority(2)
    await annotate(stage, HUB, first, labels.MADE, ago(days=301))
    trusting = await renewed(stage, "both authorities to be trusted", leaves, "ca.crt")
    assert all(one["ca.crt"].count("BEGIN CERTIFICATE") == 2 for one in trusting.values())
    await answered(load)
    await annotate(stage, HUB, second, labels.MADE, ago(days=8))
    await renewed(stage, "the second one to sign", trusting, "tls.crt")
    await answered(load)
    await annotate(stage, HUB, second, labels.MADE, ago(days=40))
    await stage.hub.gone("Secret", first, SYSTEM)
    last = await renewed(stage, "the first one to be trusted no more", trusting, "ca.crt")
    assert all(one["ca.crt"].count("BEGIN CERTIFICATE") == 1 for one in last.values())
    await answered(load)


async def answered(load: Load) -> None:
    """Enough requests for gateways to have used what they learnt."""
    enough = len(load.replies) + 200
    await until("requests to be answered", lambda: len(load.replies) >= enough)
    await asyncio.sleep(5)
    assert not load.failures, load.failures[:5]


async def shown(stage: Stage) -> dict[str, dict[str, str]]:
    return {one: await pem(stage, one) for one in (HUB, *WORKERS)}


async def renewed(stage: Stage, what: str, before: dict[str, dict[str, str]], key: str) -> dict[str, dict[str, str]]:
    """What each gateway has, once that is another everywhere than before."""

    async def look() -> dict[str, dict[str, str]] | None:
        now = await shown(stage)
        return now if all(now[one].get(key) != before[one].get(key) for one in now) else None

    return await until(what, look)


async def pem(stage: Stage, cluster: str) -> dict[str, str]:
    """The certificate of a gateway, its key, and whom it trusts."""
    where = stage.hub if cluster == HUB else stage.workers[cluster]
    found = await where.get("Secret", names.GATEWAY_CERTIFICATE, SYSTEM)
    return {key: base64.b64decode(value).decode() for key, value in (found or {}).get("data", {}).items()}


async def held(stage: Stage, cluster: str, folder: Path) -> Path:
    found, path = await pem(stage, cluster), folder / f"{cluster}.pem"
    path.write_text(found["tls.crt"] + found["tls.key"])
    return path


async def annotate(stage: Stage, cluster: str, name: str, key: str, value: str) -> None:
    where = stage.hub if cluster == HUB else stage.workers[cluster]
    await where.patch("Secret", name, SYSTEM, metadata={"annotations": {key: value}})


async def kick(stage: Stage) -> None:
    """Have what is due be seen at once, and not with the next resync."""
    for worker in WORKERS:
        await stage.hub.patch("InferenceCluster", worker, metadata={"annotations": {"scenario": ago(days=0)}})


async def refused(stage: Stage, scheme: str, worker: str, path: str, trusted: Path) -> bool:
    return (await ask(stage, scheme, worker, path, trusted)).startswith("refused")


def ago(*, days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_what_is_not_encrypted_is_said(stage: Stage) -> None:
    for worker in WORKERS:
        found = await stage.hub.get("InferenceCluster", worker)
        assert found is not None
        said = condition(found, "GatewaySecured")
        assert (said["status"], said["reason"]) == ("False", "Open")
        assert "did not install the Traefik" in said["message"]
