"""The operator with Helm and a hub that has nothing: the front door comes, changes and goes by the charts' names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localfleet.fleet import Fleet, Options
from modelplane_operator.controllers.kinds import kinds
from modelplane_operator.settings import Settings
from tests.controllers.test_clusters import SYSTEM, Hub, operating
from tests.support.charts import SIMPLE, pack
from tests.support.helm import noted_helm
from tests.support.manifests import ROOT

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

TRAEFIK = (ROOT / "localfleet/manifests/hub/traefik.yaml").read_text().split("\n---\n", 1)[1]
"""What the real chart brings, but for the namespace, as the fleet's hub runs it."""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Fleet]:
    """A hub that has everything but software."""
    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.up(Options(workers=0, data_plane=False))
        yield fleet
    finally:
        fleet.down()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    pack(mirror, "traefik", "40.2.0", {**SIMPLE, "templates/all.yaml": TRAEFIK})
    helm = noted_helm(tmp_path)
    return Settings(listen=("127.0.0.1", 0), helm=str(helm), chart_mirror=str(mirror), helm_timeout=60.0, stop_grace=20)


def front_door(version: str = "40.2.0", **traefik: Any) -> Manifest:
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": "default"},
        "spec": {"backend": "Traefik", "traefik": {"version": version, **traefik}},
    }


def test_it_comes_and_goes(bare: Fleet, settings: Settings, tmp_path: Path) -> None:
    hub = Hub(bare)
    hub.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    hub.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    hub.kubectl("create", "namespace", SYSTEM)
    with operating(bare, settings, kinds):
        hub.apply(front_door())
        hub.says("default", "Ready", "Available", what="ig")
        hub.kubectl("delete", "ig", "default", "--wait=false")
        hub.gone("ig", "default")
        hub.gone("namespace", "traefik-system")
