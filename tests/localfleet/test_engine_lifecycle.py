"""What a kubelet would do with an engine pod, decided without a clock or a cluster."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localfleet.engine.lifecycle import KILLED, Health, Lives, advance, begin, port_health, wake_at
from localfleet.engine.pods import Pod, Server, read_pod
from localfleet.engine.settings import Hang, SettingError, Settings, read
from localfleet.engine.statuses import read_lives, status_changes
from tests.localfleet.engine_support import Manifest, engine_pod, running

LIVENESS = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10, "failureThreshold": 2}


def pod_of(manifest: Manifest) -> Pod:
    return read_pod(manifest | {"status": running("10.0.0.1")}, defaults=Settings())


def born(pod: Pod, at: float = 0.0) -> Lives:
    return {container.name: begin(container, at, scale=1.0) for container in pod.containers}


def live(pod: Pod, lives: Lives, until: float) -> Lives:
    """The lives at `until`, having looked exactly when `wake_at` said."""
    for _ in range(10_000):
        wake = wake_at(pod, lives)
        if wake is None or wake > until:
            return advance(pod, lives, until, scale=1.0)
        lives = advance(pod, lives, wake, scale=1.0)
    raise AssertionError(f"still awake before {until}")


def settings(**changes: object) -> dict[str, str]:
    return {f"localfleet.dev/{name.replace('_', '-')}": str(value) for name, value in changes.items()}


@pytest.mark.parametrize(
    ("name", "annotations", "at", "ready"),
    [
        ("not before the first probe", {}, 29.9, False),
        ("with the first probe that an engine answers", {}, 30, True),
        ("not while weights load, however often it is asked", settings(startup_seconds=95), 99, False),
        ("with the first probe after the weights are loaded", settings(startup_seconds=95), 100, True),
        ("never while it hangs", settings(hang="true"), 500, False),
        ("although its requests hang, because /health answers", settings(hang="generation"), 30, True),
    ],
)
def test_a_pod_becomes_ready(name: str, annotations: dict[str, str], at: float, *, ready: bool) -> None:
    pod = pod_of(engine_pod("p", annotations=annotations))

    assert live(pod, born(pod), at)["engine"].ready is ready, name


def test_a_ready_pod_that_hangs_is_unready_after_three_failed_probes_and_ready_again_when_it_answers() -> None:
    pod = pod_of(engine_pod("p"))
    hung = replace(pod, settings=replace(pod.settings, hang=Hang.EVERYTHING))
    lives = live(pod, born(pod), 35)

    assert live(hung, lives, 59)["engine"].ready
    assert not live(hung, lives, 60)["engine"].ready
    assert live(pod, live(hung, lives, 65), 70)["engine"].ready


def test_liveness_kills_a_hung_engine_and_it_starts_again() -> None:
    pod = pod_of(engine_pod("p", annotations=settings(hang="true"), probes={"livenessProbe": LIVENESS}))

    life = live(pod, born(pod), 10.5)["engine"]

    assert (life.restarts, life.last_exit and life.last_exit.code) == (1, KILLED)
    assert life.started_at == 10


def test_a_startup_probe_holds_the_others_back_and_has_its_own_patience() -> None:
    startup = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10, "failureThreshold": 30}
    probes = {"startupProbe": startup, "livenessProbe": LIVENESS}
    patient = pod_of(engine_pod("p", annotations=settings(startup_seconds=200), probes=probes))
    endless = pod_of(engine_pod("p", annotations=settings(startup_seconds=1000), probes=probes))

    assert live(patient, born(patient), 250)["engine"].restarts == 0
    assert live(patient, born(patient), 250)["engine"].ready
    assert live(endless, born(endless), 295)["engine"].restarts == 1


def test_an_engine_that_always_crashes_backs_off_as_a_kubelet_does() -> None:
    pod = pod_of(engine_pod("p", annotations=settings(crash=3)))
    starts: dict[int, float] = {}
    lives = born(pod)

    while len(starts) < 8:
        wake = wake_at(pod, lives)
        assert wake is not None
        lives = advance(pod, lives, wake, scale=1.0)
        if ended := lives["engine"].last_exit:
            starts[lives["engine"].restarts] = ended.started_at

    assert list(starts.values()) == [0, 0, 10, 30, 70, 150, 310, 610]
    assert lives["engine"].last_exit and lives["engine"].last_exit.code == 3


def test_only_the_first_starts_crash_when_asked_so() -> None:
    pod = pod_of(engine_pod("p", annotations=settings(crash=1, crash_times=2)))

    life = live(pod, born(pod), 100)["engine"]

    assert (life.restarts, life.ready) == (2, True)


def test_a_decode_pod_is_ready_when_its_sidecar_reaches_its_engine() -> None:
    sidecar = {
        "name": "pd-sidecar",
        "image": "sidecar",
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
    }
    engine = {"ports": [{"containerPort": 8001}]}
    probes = {"readinessProbe": {"httpGet": {"path": "/health", "port": 8001}}}
    manifest = engine_pod(
        "p", annotations=settings(startup_seconds=15), containers=[sidecar], engine=engine, probes=probes
    )
    pod = pod_of(manifest)

    assert pod.servers == {8001: Server.ENGINE, 8000: Server.SIDECAR}
    early, late = live(pod, born(pod), 12), live(pod, born(pod), 20)
    assert [port_health(pod, early, port, 12) for port in (8000, 8001)] == [Health.ANSWERS, Health.REFUSED]
    assert [life.ready for life in early.values()] == [False, False]
    assert [life.ready for life in late.values()] == [True, True]


@pytest.mark.parametrize(
    ("args", "models"),
    [
        (["--model=llama"], ("llama",)),
        (["--model", "org/llama", "--port", "8000"], ("org/llama",)),
        (["--model", "/mnt/models", "--served-model-name", "a", "b", "--port=1"], ("a", "b")),
        (["sh", "-c", "vllm serve org/qwen --tensor-parallel-size 2"], ("org/qwen",)),
        (["--model-path", "org/sglang"], ("org/sglang",)),
        (["--tensor-parallel-size=2"], ("vllm-openai",)),
        (["--model=llama", "--localfleet-model=other"], ("other",)),
    ],
)
def test_the_model_is_read_from_the_command_line(args: list[str], models: tuple[str, ...]) -> None:
    assert pod_of(engine_pod("p", args=args)).models == models


def test_a_worker_without_port_or_probe_serves_nothing_and_is_ready_at_once() -> None:
    manifest = engine_pod(
        "p", probes={}, engine={"ports": []}, labels={"leaderworkerset.sigs.k8s.io/worker-index": "1"}
    )
    del manifest["metadata"]["labels"]["modelplane.ai/serving"]
    pod = pod_of(manifest)

    assert (pod.role, dict(pod.servers)) == ("worker", {})
    assert advance(pod, born(pod), 0, scale=1.0)["engine"].ready


@pytest.mark.parametrize("texts", [{"startup-second": "1"}, {"hang": "maybe"}, {"crash": "x"}, {"error-rate": ""}])
def test_a_setting_without_meaning_is_refused(texts: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        read(texts, onto=Settings())


def test_a_pre_stop_sleep_delays_the_end_and_the_grace_period_bounds_it() -> None:
    manifest = engine_pod("p", engine={"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 20"]}}}})
    manifest["metadata"] |= {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 60}

    termination = pod_of(manifest).termination

    assert termination is not None
    assert termination.deadline - termination.stop_at == 40


@given(st.lists(st.floats(0, 400), min_size=1, max_size=30), st.integers(-1, 1), st.integers(0, 3))
def test_a_written_status_says_all_there_is_to_say(times: list[float], crash: int, crash_times: int) -> None:
    pod = pod_of(engine_pod("p", annotations=settings(crash=crash, crash_times=crash_times, startup_seconds=40)))
    status: Manifest = running("10.0.0.1", since=0.0)
    lives = read_lives(pod, status, 0.0, scale=1.0)
    for now in sorted(times):
        lives = advance(pod, lives, now, scale=1.0)
        changes = status_changes(pod, lives, status, now)
        status = merged(status, changes)

        assert status_changes(pod, lives, status, now + 1) == {}
        ready = next(entry for entry in status["conditions"] if entry["type"] == "Ready")
        assert (ready["status"] == "True") is lives["engine"].ready


def test_an_engine_without_an_image_waits_for_it_as_a_kubelet_tells() -> None:
    pod = pod_of(engine_pod("p", annotations=settings(pull="fails")))
    status: Manifest = running("10.0.0.1", since=0.0)
    lives = advance(pod, read_lives(pod, status, 0.0, scale=1.0), 100.0, scale=1.0)
    (told,) = status_changes(pod, lives, status, 100.0)["containerStatuses"]
    waiting = told["state"]["waiting"]
    assert (told["ready"], waiting["reason"]) == (False, "ImagePullBackOff")
    assert waiting["message"].endswith(f"{told['image']}: not found")


def test_a_simulator_that_starts_again_keeps_a_ready_pod_ready() -> None:
    pod = pod_of(engine_pod("p"))
    status = running("10.0.0.1", since=0.0)
    status = merged(status, status_changes(pod, live(pod, born(pod), 100), status, 100))

    again = advance(pod, read_lives(pod, status, 101, scale=1.0), 101, scale=1.0)

    assert status_changes(pod, again, status, 101) == {}


def merged(status: Manifest, changes: Manifest) -> Manifest:
    """What the API server makes of a strategic merge of our changes."""
    conditions = {entry["type"]: entry for entry in status["conditions"]}
    for change in changes.get("conditions", []):
        whole = {**conditions.get(change["type"], {}), **change}
        conditions[change["type"]] = {field: value for field, value in whole.items() if value is not None}
    return {**status, **changes, "conditions": list(conditions.values())}
