"""Settings: a flag wins over a variable, a variable over the default, and what cannot be used is named."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kubeloop.client.limits import ServerLimits
from kubeloop.lease import Times
from modelplane_operator.api import names
from modelplane_operator.models.replica.render import Lifecycle
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.settings import Settings, SettingsError
from tests.support.manifests import ROOT

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://hub.example:6443"}}]
users: [{name: u, user: {token: t}}]
"""


def test_without_anything_said_all_is_as_documented() -> None:
    settings = Settings.read(environment={})

    assert settings == Settings()
    assert settings.times == Times()
    assert settings.lifecycle == Lifecycle()
    assert settings.reach == Reach()


def test_a_flag_wins_over_a_variable_and_that_over_the_default() -> None:
    environment = {"MODELPLANE_LEASE_DURATION": "3", "MODELPLANE_RESYNC": "30", "MODELPLANE_LOG_LEVEL": ""}

    settings = Settings.read({"lease_duration": "5", "resync": None}, environment)

    assert (settings.lease_duration, settings.resync, settings.log_level) == (5.0, 30.0, "info")


def test_a_flag_can_take_back_what_a_variable_says() -> None:
    assert Settings.read({"helm": ""}, {"MODELPLANE_HELM": "/usr/local/bin/helm"}).helm == ""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("listen", ":8080", ("", 8080)),
        ("listen", "[::1]:80", ("::1", 80)),
        ("allow_endpoints", "10.0.0.0/8, .Corp.example,", ("10.0.0.0/8", ".corp.example")),
        ("kubeconfig", "/etc/hub", Path("/etc/hub")),
        ("lease_duration", "7.5", 7.5),
        ("cluster_limits", "0.5", 0.5),
        ("helm_memory", "512Mi", 512 * 2**20),
        ("max_disruptions", "0", "0"),
        ("max_disruptions", "10%", "10%"),
        ("google_endpoints", "compute=https://a.p.googleapis.com/", (("compute", "https://a.p.googleapis.com"),)),
    ],
)
def test_every_kind_of_value_is_read(name: str, text: str, value: Any) -> None:
    assert getattr(Settings.read({name: text}, {}), name) == value


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"listen": "8080"}, {}, "--listen=8080: it must be HOST:PORT"),
        ({"listen": ":65536"}, {}, "--listen=:65536: it must be HOST:PORT"),
        ({}, {"MODELPLANE_RESYNC": "many"}, "MODELPLANE_RESYNC=many: could not convert"),
        ({"lease_duration": "0.5"}, {}, "--lease-duration=0.5: it must be from 5 to 3600"),
        ({"lease_duration": "1e5"}, {}, "--lease-duration=1e5: it must be from 5 to 3600"),
        ({"cluster_limits": "0"}, {}, "--cluster-limits=0: it must be from 0.1 to 100"),
        ({"cluster_limits": "nan"}, {}, "--cluster-limits=nan: it must be from 0.1 to 100"),
        ({"helm_memory": "5Xi"}, {}, "--helm-memory=5Xi: it must be a number of bytes"),
        ({"max_disruptions": "0%"}, {}, "--max-disruptions=0%: it must be a number from 0 to 1000, or a percentage"),
        ({"max_disruptions": "1001"}, {}, "--max-disruptions=1001: it must be a number from 0 to 1000"),
        ({"resync": "-1"}, {}, "--resync=-1: it must be above 0"),
        ({"resync": "nan"}, {}, "--resync=nan: it must be above 0"),
        ({"log_level": "loud"}, {}, "--log-level=loud: it must be one of debug, info, warning, error"),
        ({"lease_namespace": "A b"}, {}, "--lease-namespace=A b: it must be a DNS label"),
        ({"refuse_endpoints": "10.0.0.1/8"}, {}, "--refuse-endpoints=10.0.0.1/8: 10.0.0.1/8 has host bits set"),
        ({"allow_endpoints": "10.0.0.0/8,127.0.0.1"}, {}, "127.0.0.1 is on the gateway's own machine"),
        ({"allow_endpoints": "127.8.0.0/16"}, {}, "127.8.0.0/16 is on the gateway's own machine"),
        ({"allow_endpoints": "::1"}, {}, "::1 is on the gateway's own machine"),
        ({"allow_endpoints": "0.0.0.0/32"}, {}, "0.0.0.0/32 is on the gateway's own machine"),
        ({"allow_endpoints": "::ffff:127.0.0.1/128"}, {}, "is on the gateway's own machine"),
        ({"allow_endpoints": "localhost"}, {}, "localhost is on the gateway's own machine"),
        ({"allow_endpoints": ".localhost"}, {}, ".localhost is on the gateway's own machine"),
        ({"google_endpoints": "storage=https://a"}, {}, "storage is none of container, compute, file, serviceusage"),
        ({"google_endpoints": "compute=a"}, {}, "it must be http:// or https://"),
        ({"engine_drain": "360"}, {}, "--engine-drain must be shorter than --engine-grace"),
    ],
)
def test_what_cannot_be_used_is_named(flags: dict[str, str], environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.read(flags, environment)

    assert message in str(refused.value)


def test_every_option_is_a_flag_with_its_default_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    Settings.add_flags(parser)
    said = " ".join(parser.format_help().split())

    assert set(Settings.__dataclass_fields__) == set(vars(parser.parse_args([])))
    assert "--lease-duration SECONDS seconds without a renewal" in said
    assert "--log-level debug|info|warning|error lowest level that is logged (default: info)" in said
    assert "--helm-memory SIZE" in said
    assert "(default: 127.0.0.1:8080)" in said


def test_the_hub_is_reached_as_kubectl_would(tmp_path: Path) -> None:
    chosen, other = tmp_path / "chosen", tmp_path / "other"
    chosen.write_text(KUBECONFIG)
    other.write_text(KUBECONFIG.replace("hub.example", "other.example"))

    assert Settings(kubeconfig=chosen).hub({"KUBECONFIG": str(other)}).server == "https://hub.example:6443"
    assert Settings().hub({"KUBECONFIG": f"{other}:{chosen}"}).server == "https://other.example:6443"


@pytest.mark.parametrize(
    ("listen", "name"),
    [
        ("localhost:9443", "localhost"),
        ("127.0.0.1:9443", names.ADMISSION_SERVICE),
        ("[::1]:9443", names.ADMISSION_SERVICE),
        (":9443", names.ADMISSION_SERVICE),
    ],
)
def test_api_servers_call_the_webhook_by_its_service_unless_it_listens_at_a_name(listen: str, name: str) -> None:
    assert Settings.read({"admission_listen": listen}, {}).admission_name == name


def test_limits_of_clusters_are_scaled_together() -> None:
    default, twice = ServerLimits(), ServerLimits().scale(2)

    assert default.scale(Settings().cluster_limits) == default
    for limit in ("answer", "page", "listing", "sent", "objects", "cached"):
        assert getattr(twice, limit) == 2 * getattr(default, limit)
    assert (twice.at_once, twice.cut) == (default.at_once, default.cut)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--resync=x"], 2, "--resync=x: could not convert"),
        (["run", "--kubeconfig=/no/such/file"], 1, "there is no kubeconfig /no/such/file: name one by --kubeconfig"),
    ],
)
def test_the_command_says_what_is_wrong_in_its_last_line(arguments: list[str], code: int, message: str) -> None:
    command = [sys.executable, "-m", "modelplane_operator", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)

    assert said.returncode == code
    assert message in said.stderr.splitlines()[-1]
    assert "Traceback" not in said.stderr


def test_helm_sees_how_charts_are_reached_and_nothing_else() -> None:
    needed = {"PATH": "/bin", "https_proxy": "http://proxy", "NO_PROXY": "10.0.0.0/8", "HELM_REGISTRY_CONFIG": "/login"}

    assert Settings().helms_environment({**needed, "HOME": "/root", "MODELPLANE_X": "1", "AWS_SECRET": "s"}) == needed
