"""Parts of the fleet that need no fleet: profiles, addresses, names, images, what goes wrong before it starts."""

from __future__ import annotations

import itertools
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet import fleet, network, profiles
from localfleet.cloud import pods
from localfleet.cloud.names import Names, answered
from localfleet.cluster import programs
from localfleet.errors import DeadlineError, FleetError
from localfleet.fleet import Fleet, Options
from localfleet.network import Wire
from localfleet.waiting import until
from scripts import demo
from tests.support.manifests import ROOT

STAGES = Path(profiles.__file__).parents[1] / "stages.yaml"


def profile(tmp_path: Path, text: str) -> profiles.Profile:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    return profiles.load(path)


def test_the_default_profile_has_gpus_on_workers_and_none_on_the_hub() -> None:
    default = profiles.load()

    assert [pool.devices for pool in default.pools(0)] == [()]
    assert {entry.driver for pool in default.pools(1) for entry in pool.devices} == {"gpu.nvidia.com"}


def test_the_last_entry_serves_all_further_workers(tmp_path: Path) -> None:
    loaded = profile(tmp_path, "pools: {a: {}, b: {}}\nworkers: [[a], [b]]")

    assert [[pool.name for pool in loaded.pools(index)] for index in (0, 1, 2, 3)] == [[], ["a"], ["b"], ["b"]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pools: {a: {nods: 2}}\nworkers: [[a]]", "pool a: does not know nods; it knows capacity, devices"),
        ("pools: {}\nworkers: [[a]]", "no pool a; there are"),
        ("pools: {}", "`workers` needs at least one list of pools"),
        ("pools: {a: {devices: [{count: 2}]}}\nworkers: [[a]]", "devices need a `driver`"),
        ("[]", "a mapping is expected"),
        ("{", "cannot be read"),
        ("pools: {a: {}}\nworkers: [[a]]\nhubGateway: Envoy", "`hubGateway` is Traefik or EnvoyGateway, not Envoy"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_with_a_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(profiles.ProfileError, match=re.escape(says)):
        profile(tmp_path, text)


def test_traefik_is_there_for_a_hub_that_has_it_alone(tmp_path: Path) -> None:
    default, other = profiles.load(), profile(tmp_path, "pools: {a: {}}\nworkers: [[a]]\nhubGateway: EnvoyGateway")

    assert [default.gateway(index).value for index in (0, 1)] == ["Traefik", "EnvoyGateway"]
    assert [other.gateway(index).value for index in (0, 1)] == ["EnvoyGateway", "EnvoyGateway"]
    assert set(programs(default.gateway(0))) - set(programs(default.gateway(1))) == {"traefik", "traefik-crds"}
    assert {"envoy-gateway", "envoy"} <= set(programs(default.gateway(1)))


@pytest.mark.parametrize("name", ["platform", "cloud"])
def test_the_demos_hub_has_the_gateway_that_it_is_to_have(name: str) -> None:
    (gateway, *_) = yaml.safe_load_all((ROOT / "examples" / "demo" / f"{name}.yaml").read_text())

    assert gateway["spec"]["backend"] == profiles.load(demo.PROFILE).hub_gateway.value


def test_devices_beyond_the_bound_of_a_slice_go_into_further_slices(tmp_path: Path) -> None:
    loaded = profile(tmp_path, "pools: {a: {devices: [{driver: d.test, count: 200}]}}\nworkers: [[a]]")

    made = [each for each in profiles.manifests("w", loaded.pools(1)) if each["kind"] == "ResourceSlice"]

    assert [len(each["spec"]["devices"]) for each in made] == [128, 72]
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in made} == {2}
    assert len({device["name"] for each in made for device in each["spec"]["devices"]}) == 200


def test_no_two_clusters_share_an_address() -> None:
    wires = [Wire(f"c{index}", index) for index in range(network.MAX_CLUSTERS)]
    networks = [
        ip_network(each)
        for wire in wires
        for each in (f"10.90.{wire.index}.0/30", wire.pods, wire.services, wire.balancers)
    ]

    assert not [pair for pair in itertools.combinations(networks, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize(
    ("image", "program"),
    [
        ("traefik", "traefik"),
        ("docker.io/traefik:v3.7.12", "traefik"),
        ("mirror.test:5000/library/traefik:v3@sha256:0abc", "traefik"),
        ("envoyproxy/envoy:distroless-v1.40.0", "envoy"),
        ("docker.io/envoyproxy/gateway:v1.9.1", "envoy-gateway"),
        ("ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.9.0@sha256:8731", "endpoint-picker"),
        ("ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.9.0", None),
        ("vllm/vllm-openai:v0.11.0", None),
        ("example.test/not-traefik:v1", None),
        ("example.test/envoyproxy/ratelimit:v1", None),
    ],
)
def test_an_image_that_runs_for_real_is_left_alone_by_kwok_and_no_other(image: str, program: str | None) -> None:
    stages = list(yaml.safe_load_all(STAGES.read_text()))
    (real,) = [stage for stage in stages if stage["metadata"]["name"] == "real-pod-running"]
    (key,) = [each["key"] for each in real["spec"]["selector"]["matchExpressions"] if "image" in each["key"]]
    found = re.search(r'test\("(.*)"\)', key)

    assert pods.program_of(image) == program
    assert found
    assert bool(re.search(found[1], image)) == (program is not None)


def test_arguments_are_filled_in_as_kubernetes_does() -> None:
    said = pods.expanded("$(A) $(B) $$(A) $A", {"A": "x"})

    assert said == "x $(B) $(A) $A"


class Objects:
    """A mirror that has seen these Services."""

    def __init__(self, objects: dict[tuple[str, str], dict[str, Any]]) -> None:
        self.objects = objects


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


@pytest.mark.parametrize(
    ("asked", "kind", "code", "count"),
    [
        ("web.shop.svc.cluster.local", 1, 0, 1),
        ("WEB.shop.svc.cluster.local.", 1, 0, 1),
        ("web.shop.svc.cluster.local", 28, 0, 0),
        ("web.other.svc.cluster.local", 1, 3, 0),
        ("web.shop.example.test", 1, 3, 0),
    ],
)
def test_names_of_services_are_answered(asked: str, kind: int, code: int, count: int) -> None:
    names = Names.__new__(Names)
    names._services = Objects({("shop", "web"): {"spec": {"clusterIP": "10.141.0.9"}}})  # type: ignore[assignment]

    reply = answered(question(asked, kind), names)

    assert reply is not None
    identity, flags, _, answers, _, _ = struct.unpack_from("!6H", reply)
    assert (identity, flags & 0xF, answers) == (7, code, count)
    assert not count or reply.endswith(bytes([10, 141, 0, 9]))


@pytest.mark.parametrize("query", [b"", b"\0" * 12, question("a.b")[:-5]])
def test_what_is_no_question_gets_no_answer(query: bytes) -> None:
    assert answered(query, Names.__new__(Names)) is None


def test_a_wait_says_what_it_waited_for() -> None:
    with pytest.raises(DeadlineError, match=r"waited 0 s for the moon, in vain"):
        until(lambda: None, seconds=0, what="the moon", interval=0)


@pytest.mark.parametrize(
    ("target", "value", "says"),
    [
        ("sys.platform", "darwin", "this is darwin: use a Linux VM"),
        ("fleet.shutil.which", lambda *_, **__: None, r"missing: ip \(package iproute2\)"),
        ("fleet.namespaces", lambda: ["sh", "-c", "echo not permitted >&2; exit 1"], r"not permitted.*\n.*sysctl"),
    ],
)
def test_a_machine_that_cannot_have_a_fleet_is_told_why(
    monkeypatch: pytest.MonkeyPatch, target: str, value: object, says: str
) -> None:
    monkeypatch.setattr(f"localfleet.fleet.{target.removeprefix('fleet.')}", value)

    with pytest.raises(FleetError, match=says):
        fleet.check_machine()


def test_too_little_memory_is_counted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet.binaries, "available_memory", lambda: 1 << 30)
    monkeypatch.delenv("LOCALFLEET_IGNORE_MEMORY", raising=False)

    fleet.check_memory(1)
    with pytest.raises(FleetError, match="3 more clusters need about 1800 MiB of memory and 1024 MiB are free"):
        fleet.check_memory(3)


@pytest.mark.parametrize("left", [(), ("control",), (fleet.MARK, "supervisor.log")])
def test_what_a_fleet_has_left_is_deleted(tmp_path: Path, left: Sequence[str]) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    for name in left:
        (folder / name).touch()

    assert Fleet(folder).down()
    assert not folder.exists()
    assert not Fleet(folder).down()


def test_a_folder_of_somebody_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    for delete in (Fleet(tmp_path).down, Fleet(tmp_path).clear):
        with pytest.raises(FleetError, match="has files that are not a fleet's"):
            delete()
    assert (tmp_path / "thesis.tex").exists()


def test_what_runs_in_a_fleets_network_ends_with_it_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet.control, "supervisor_pid", lambda _: os.getpid())
    ours, other = (Fleet(tmp_path / name) for name in ("fleet", "fleet-2"))
    *_, mark = itertools.takewhile(lambda word: word != "sleep", ours.inside(["sleep", "60"]))
    mine = subprocess.Popen(["env", mark, "sh", "-c", "sleep 60; true"])
    others = [subprocess.Popen(["env", *inside, "sleep", "60"]) for inside in ((), (other.inside(["sleep"])[-2],))]
    until(lambda: Path(f"/proc/{mine.pid}/task/{mine.pid}/children").read_text() or None, seconds=30, what="its child")
    child = int(Path(f"/proc/{mine.pid}/task/{mine.pid}/children").read_text())
    try:
        ours.clear()

        assert mine.wait(30) == -signal.SIGKILL
        with suppress(FileNotFoundError, ProcessLookupError):
            assert Path(f"/proc/{child}/environ").read_bytes() == b""
        assert [one.poll() for one in others] == [None, None]
    finally:
        for one in others:
            one.kill()
            one.wait()


def test_a_fleet_that_was_started_for_something_else_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when `make demo` follows `make fleet`."""
    up = Fleet(tmp_path)
    (tmp_path / fleet.MARK).write_text(Options().describe())
    monkeypatch.setattr(Fleet, "is_up", lambda _: True)
    monkeypatch.setattr(Fleet, "status", lambda _: {"clusters": [{"name": "hub"}, {"name": "worker-1"}]})
    monkeypatch.setattr(Fleet, "ask", lambda *_, **__: None)
    monkeypatch.setattr(fleet, "prepare", lambda _: None)

    up.up(Options(workers=1, audit=True))
    with pytest.raises(FleetError, match=r"another fleet is up: .*default\.yaml.* and not .*demo\.yaml, no gateways"):
        up.up(Options(workers=1, profile=demo.PROFILE, data_plane=False))


def test_a_server_of_a_test_run_that_is_killed_ends_with_it(tmp_path: Path) -> None:
    code = "import os, pathlib, sys; from localfleet.processes import Command, start; "
    code += "ours = start(Command('server', ['sleep', '60'], pathlib.Path(sys.argv[1])), tied=True); "
    code += "print(ours.process.pid, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "log"], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    server = Path(f"/proc/{int(killed.stdout)}/stat")

    def has_ended() -> bool | None:
        return not server.exists() or server.read_text().rpartition(")")[2].split()[0] == "Z" or None

    assert killed.returncode == -signal.SIGKILL
    until(has_ended, seconds=30, what="the server to end")
