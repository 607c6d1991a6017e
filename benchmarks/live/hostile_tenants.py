"""`hostile-tenants`: an operator on half a core, beside tenants and clusters whose API servers send what costs most."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trustme

from benchmarks.live import testbed as testbeds
from benchmarks.live.operator import Operator
from benchmarks.report import ROOT, Figure, percentile
from kubeloop.client import http2_frames as frames
from kubeloop.client.http2_frames import FrameType
from kubeloop.client.http2_headers import write_block
from localfleet.network import free_ports
from localfleet.pki import Authority, kubeconfig
from localfleet.processes import Command, start

NAME = "hostile-tenants"
CLUSTERS = 4
QUOTA = 0.5  # of a core
EVERY = 0.05  # seconds between two questions about its health
BURST = 64 * 1024
CHAIN = 90  # certificates: OpenSSL verifies no longer chain than 100
ADDRESS = "10.99.0.1"  # of their servers: no loopback address, to which no tenant leads the operator
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{testbeds.SYSTEM}/leases/modelplane-operator"
GROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


async def measure_beside_hostile_tenants(tenants: int, seconds: float) -> AsyncIterator[Figure]:
    """Measure the operator alone, and then beside so many tenants with an LLMInference each and four clusters."""
    _enter_own_network()
    async with testbeds.start_testbed(clusters=1) as testbed:
        with testbed.operator("operator", f"--allow-endpoints={ADDRESS}") as one, _limit_to_half_a_core(one.pid):
            await testbed.wait_until_up(one, 1)
            async for figure in _figures(testbed, one, tenants, seconds, "alone"):
                yield figure
            with _servers(testbed.folder) as kubeconfigs:
                await testbed.apply(testbeds.namespace(f"hostile-{number:02}") for number in range(tenants))
                await testbed.apply(_manifests(testbed, tenants, kubeconfigs))
                async for figure in _figures(testbed, one, tenants, seconds, "beside them"):
                    yield figure
                asked = (testbed.folder / "hostile.log").read_text().count("asked")
                yield Figure(NAME, tenants, "times that their servers were asked something", asked, "times")


def _enter_own_network() -> None:
    """Move this process to a network namespace of its own that has the address of the servers; raises OSError."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    for command in (("link", "set", "lo", "up"), ("address", "add", f"{ADDRESS}/32", "dev", "lo")):
        subprocess.run(["ip", *command], check=True)


@contextmanager
def _limit_to_half_a_core(pid: int) -> Generator[None]:
    """Have the kernel give a process, and what it starts, half of a core at most; raises OSError where it cannot."""
    root = next((group for group in GROUPS if (group / "cpu.cfs_quota_us").exists()), GROUPS[-1])
    group = root / f"modelplane-bench-{pid}"
    group.mkdir()
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(f"{int(QUOTA * 100_000)}")
        else:
            (group / "cpu.max").write_text(f"{int(QUOTA * 100_000)} 100000")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (root / "cgroup.procs").write_text(left)
        with suppress(OSError):
            group.rmdir()


async def _figures(
    testbed: testbeds.Testbed, one: Operator, tenants: int, seconds: float, when: str
) -> AsyncIterator[Figure]:
    leases, times = [await testbed.hub.request("GET", LEASE)], list[float]()
    until, cpu, began = time.monotonic() + seconds, one.cpu(), time.monotonic()
    while time.monotonic() < until:
        times.append(await asyncio.to_thread(_healthz, one.port))
        await asyncio.sleep(EVERY)
    core = (one.cpu() - cpu) / (time.monotonic() - began)
    leases.append(await testbed.hub.request("GET", LEASE))
    taken = {lease["spec"].get("leaseTransitions", 0) for lease in leases}
    for percent in (50, 99, 100):
        yield Figure(NAME, tenants, f"/healthz, {when}: p{percent}", round(percentile(times, percent), 1), "ms")
    yield Figure(NAME, tenants, f"leases lost, {when}", max(taken) - min(taken), "leases")
    yield Figure(NAME, tenants, f"CPU of the operator's own process, {when}", round(core, 2), "cores")
    yield Figure(NAME, tenants, f"memory of it, {when}, at most", round(one.memory("VmHWM"), 1), "MB")


def _healthz(port: int) -> float:
    """Return for how many milliseconds the operator leaves a kubelet waiting."""
    began = time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
        answer.read()
    return (time.monotonic() - began) * 1000


def _manifests(testbed: testbeds.Testbed, tenants: int, kubeconfigs: Sequence[str]) -> list[testbeds.Manifest]:
    found: list[testbeds.Manifest] = []
    for number in range(CLUSTERS):
        name = testbeds.cluster_name(1 + number)
        found += [testbed.kubeconfig_secret(name, kubeconfigs[number % len(kubeconfigs)]), testbeds.cluster(name)]
    for number in range(tenants):
        namespace = f"hostile-{number:02}"
        about = {"name": "theirs", "namespace": namespace}
        data = {"kubeconfig": kubeconfigs[number % len(kubeconfigs)]}
        spec = {"model": "a/b", "providerConfigName": "theirs", "targetNamespace": "models"}
        found += [
            {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": data},
            {
                "apiVersion": "inference.devopstoolkit.ai/v1alpha1",
                "kind": "LLMInference",
                "metadata": about,
                "spec": spec,
            },
        ]
    return found


# The servers, in a process of their own -------------------------------------------------------------------------------


def _answer(stream: int) -> bytes:
    return frames.frame(
        FrameType.HEADERS, b"\x20" + write_block([(":status", "200")]), flags=frames.END_HEADERS, stream=stream
    )


_MANY = frames.frame(FrameType.SETTINGS, b"".join((6 + at).to_bytes(2) + b"\0\0\0\1" for at in range(2730)))
FLOODS: Mapping[str, Callable[[int], bytes]] = {
    "settings": lambda _: _MANY,
    "data": lambda stream: frames.frame(FrameType.DATA, b"x", stream=stream),
    "long-data": lambda stream: frames.frame(FrameType.DATA, b'{"items":[' + b'{"a":{}},' * 1500, stream=stream),
    "ping": lambda _: frames.frame(FrameType.PING, b"\0" * 8),
    "continuation": lambda stream: frames.frame(FrameType.CONTINUATION, b"", stream=stream),
    "chain": lambda _: b"",
}
"""The frames that a server sends without end after the first request."""


async def _serve(flood: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    print("asked", flush=True)
    if flood == "chain":  # the handshake has cost what it costs: the next one, please
        writer.transport.abort()
        return
    with suppress(OSError, asyncio.IncompleteReadError):
        await reader.readexactly(len(frames.PREFACE))
        writer.write(frames.frame(FrameType.SETTINGS))
        stream = 0
        while not stream:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3]))
            stream = int.from_bytes(head[5:]) if head[3] == FrameType.HEADERS else 0
        writer.write(_answer(stream))
        if flood == "continuation":
            writer.write(frames.frame(FrameType.HEADERS, b"", stream=stream + 2))
        one = FLOODS[flood](stream)
        burst = one * max(1, BURST // len(one))
        while True:
            writer.write(burst)
            await writer.drain()
    writer.transport.abort()


async def _run(ports: Sequence[int], folder: Path) -> None:
    for port, flood in zip(ports, FLOODS, strict=True):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(folder / ("chain.pem" if flood == "chain" else "server.pem"))
        await asyncio.start_server(lambda r, w, flood=flood: _serve(flood, r, w), ADDRESS, port, ssl=context)
    print("ready", flush=True)
    await asyncio.Event().wait()


@contextmanager
def _servers(folder: Path) -> Generator[list[str]]:
    """Start the servers; gives a kubeconfig for each."""
    plain, ports = Authority.new(), free_ports(len(FLOODS))
    identity = plain.server(ADDRESS)
    (folder / "server.pem").write_bytes(identity.certificate + identity.key)
    top = issuer = trustme.CA(path_length=CHAIN)
    for _ in range(CHAIN):
        issuer = issuer.create_child_ca()
    leaf = issuer.issue_cert(ADDRESS)
    (folder / "chain.pem").write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    argv = [sys.executable, "-m", "benchmarks.live.hostile_tenants", str(folder), *map(str, ports)]
    running = start(Command("hostile", argv, folder / "hostile.log", {"PYTHONPATH": str(ROOT)}))
    running.wait_until(running.says_ready, seconds=30, what="the hostile servers to be ready")
    user = plain.user("bench")
    try:
        yield [
            kubeconfig(
                cluster=flood,
                server=f"https://{ADDRESS}:{port}",
                authority=top.cert_pem.bytes() if flood == "chain" else plain.certificate,
                user=user,
            )
            for flood, port in zip(FLOODS, ports, strict=True)
        ]
    finally:
        running.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The hostile servers, which the benchmark starts.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("ports", type=int, nargs=len(FLOODS))
    given = parser.parse_args()
    asyncio.run(_run(given.ports, given.folder))
