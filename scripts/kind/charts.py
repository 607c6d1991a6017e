"""The charts that the operator installs on clusters by kind, where no registry is asked: a mirror, as ConfigMaps.

Envoy Gateway's is the real one, from its Go module. The others are small ones under the real ones' names, which the Go
module proxy does not have. What they install is real for Traefik; for LeaderWorkerSets and devices it is a controller
and a driver of this repository; all others are a pod that does nothing.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from localfleet import binaries, charts, leaderworkerset
from modelplane_operator.api.serving_stack import Versions
from modelplane_operator.clusters.stack.charts import STACK
from scripts.kind import images

HERE = Path(__file__).parent / "charts"
ENVOY_GATEWAY_VERSION = "v1.9.1"
TRAEFIK_VERSION = "40.2.0"  # examples/start/1-gateway.yaml
POOL = "made-up"
REFERENCE_DRIVER, REFERENCE_POOL = "dra-example-driver", "gpu-synthetic"
IDLE = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {{{{ .Release.Name }}}}}}
spec:
  selector: {{matchLabels: {{app: {{{{ .Release.Name }}}}}}}}
  template:
    metadata: {{labels: {{app: {{{{ .Release.Name }}}}}}}}
    spec:
      automountServiceAccountToken: false
      securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
      - name: idle
        image: {images.SIMULATOR}
        command: [/opt/modelplane/bin/python, -c, "import signal; signal.sigwait([signal.SIGTERM])"]
        securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""
HURRIED = {"drain-grace": 5, "engine-drain": 5, "engine-grace": 10}
"""Shorter than in production: no answer of these engines takes minutes, and somebody waits for them to end."""
Manifest = dict[str, Any]


def mirror() -> Mapping[str, bytes]:
    """Every archive by its name."""
    with tempfile.TemporaryDirectory() as folder:
        for name, version, files in wanted():
            charts.pack(Path(folder), name, version, files)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def wanted() -> list[tuple[str, str, Mapping[str, str]]]:
    definitions = binaries.ensure("traefik-crds")["traefik-crds"] / "01-traefik-crd.yml"
    traefik = {**charts.stand_in("traefik"), "crds/traefik.yaml": definitions.read_text()}
    found = [
        ("traefik", TRAEFIK_VERSION, traefik),
        ("gateway-helm", ENVOY_GATEWAY_VERSION, charts.envoy_gateway(ENVOY_GATEWAY_VERSION)),
    ]
    for part in STACK:
        if part.chart != "gateway-helm":
            found.append((part.chart, part.version(Versions()), stand_in(part.chart)))
    # As the reference's own tests have it, driver and pool; here by a chart of ours, as people add theirs.
    return [*found, (REFERENCE_DRIVER, "0.4.0", made_up_devices("gpu.example.com", "In"))]


def stand_in(chart: str) -> Mapping[str, str]:
    match chart:
        case "lws":
            crd = Path(leaderworkerset.CRD).read_text()
            return {"crds/leaderworkersets.yaml": crd, "templates/all.yaml": filled("leaderworkerset")}
        case "dra-driver-nvidia-gpu":
            return made_up_devices("gpu.nvidia.com", "NotIn")
        case _:
            return {"templates/all.yaml": IDLE}


def made_up_devices(driver: str, operator: str) -> Mapping[str, str]:
    """On the nodes of any pool but one, which has the other driver."""
    pools = [{"operator": "Exists"}, {"operator": operator, "values": [REFERENCE_POOL]}]
    values = yaml.safe_dump({"driver": driver, "pools": [{"key": "modelplane.ai/pool", **one} for one in pools]})
    return {"templates/all.yaml": filled("dra-driver"), "values.yaml": values}


def filled(name: str) -> str:
    """A file of manifests with the images that there are."""
    text = (HERE / f"{name}.yaml").read_text()
    return text.replace("IMAGE_OF_SIMULATOR", images.SIMULATOR).replace("IMAGE_OF_DRA_DRIVER", images.DRA_DRIVER)


def config_maps(namespace: str) -> list[Manifest]:
    """The mirror as objects: one archive in each, as all of them together would be too large for one."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config_map(file), "namespace": namespace},
            "binaryData": {file: base64.b64encode(content).decode()},
        }
        for file, content in mirror().items()
    ]


def config_map(file: str) -> str:
    return f"chart-{file.removesuffix('.tgz')}"


def values() -> str:
    """What the operator's chart is installed with here."""
    sources = [{"configMap": {"name": config_map(file)}} for file in mirror()]
    repository, _, tag = images.OPERATOR.rpartition(":")
    # By its tag alone: the operator asks for the digest of the real one, which the stand-in does not have.
    picker = {} if images.REAL_PICKER else {"picker-image": images.PICKER}
    return yaml.safe_dump(
        {
            "image": {"repository": repository, "tag": tag},
            "tenantNamespaces": "all",
            "settings": {"chart-mirror": "/charts", "chart-digests": "ignored", **picker, **HURRIED},
            "extraVolumes": [{"name": "charts", "projected": {"sources": sources}}],
            "extraVolumeMounts": [{"name": "charts", "mountPath": "/charts", "readOnly": True}],
        }
    )
