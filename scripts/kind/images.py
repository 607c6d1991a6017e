"""The images of clusters by kind: built here, from programs that the local fleet has built, and loaded into nodes.

None comes from a registry but the base. Where an image has the name of a real one, what is in it is that program
(Traefik, Envoy Gateway, Envoy), the engine simulator in place of an engine, or the local fleet's stand-in for the
endpoint picker: docs/kind.md has the table.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from localfleet import binaries
from modelplane_operator import __version__
from modelplane_operator.api import pins
from modelplane_operator.models.llm_inference.render_deployment import IMAGE as ENGINE  # and what examples/start runs
from scripts.kind.commands import run

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).parent / "images"
OPERATOR = "modelplane-operator:kind"
PUSHED = f"registry.example.com/modelplane-operator:{__version__}"
"""The same, under the name that docs/install.md pushes it by."""
SIMULATOR = "modelplane-kind/simulator:1"
TRAEFIK = "traefik:v3.7.12"
ENVOY_GATEWAY = "envoyproxy/gateway:v1.9.1"
ENVOY = "envoyproxy/envoy:v1.40.0"
MADE_UP_DEVICES = "modelplane-kind/made-up-devices:1"
DRA_DRIVER = os.environ.get("DRA_IMAGE") or MADE_UP_DEVICES
PICKER = pins.PICKER.image
REAL_PICKER = bool(os.environ.get("REAL_PICKER"))
"""Nodes pull the picker by its digest, and there is no stand-in under its tag."""
ON_HUB = (OPERATOR, PUSHED, SIMULATOR, TRAEFIK)
ON_WORKERS = (
    OPERATOR,
    PUSHED,
    SIMULATOR,
    ENGINE,
    ENVOY_GATEWAY,
    ENVOY,
    DRA_DRIVER,
    *(() if REAL_PICKER else (PICKER,)),
)
PROGRAM = """FROM {base}
COPY --chown={user} tmp /tmp
COPY {name} /usr/local/bin/{name}
ENV PATH=/usr/local/bin:/usr/bin:/bin
USER {user}
ENTRYPOINT ["/usr/local/bin/{name}"]
"""


def build(base: str) -> None:
    """Build all of them; the operator's is there (`make image`). Docker keeps what has not changed."""
    programs = binaries.ensure("traefik", "envoy-gateway", "envoy", "madeupdevices")
    run("docker", "tag", OPERATOR, PUSHED)
    simulator = {"localfleet": ROOT / "localfleet", "vllm": HERE / "vllm"}
    dockerfile = {"Dockerfile": HERE / "simulator.Dockerfile"}
    docker_build(simulator | dockerfile, SIMULATOR, ENGINE, OPERATOR=OPERATOR)
    pack(programs["traefik"], TRAEFIK)
    pack(programs["envoy-gateway"], ENVOY_GATEWAY)
    pack(programs["envoy"], ENVOY, base=base)  # the only one that needs a C library
    pack(programs["madeupdevices"], MADE_UP_DEVICES, user="0")  # it speaks to the kubelet by sockets of root
    if not REAL_PICKER:
        pack(binaries.ensure("endpoint-picker")["endpoint-picker"], PICKER)


def pack(program: Path, image: str, base: str = "scratch", user: str = "65532:65532") -> None:
    """An image of one program."""
    with tempfile.TemporaryDirectory() as folder:
        dockerfile, temporary = Path(folder) / "Dockerfile", Path(folder) / "tmp"
        dockerfile.write_text(PROGRAM.format(base=base, name=program.name, user=user))
        temporary.mkdir()  # without it no Envoy says that it has drained, and each stays for the whole of its time
        docker_build({program.name: program, "Dockerfile": dockerfile, "tmp": temporary}, image)


def docker_build(files: Mapping[str, Path], *names: str, **arguments: str) -> None:
    """Build from a folder that has these files and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files.items():
            place = Path(folder) / name
            if path.is_dir():
                shutil.copytree(path, place, ignore=shutil.ignore_patterns("__pycache__", "tools"))
            else:
                shutil.copy2(path, place)
        tags = [f"--tag={name}" for name in names]
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        run("docker", "build", "--quiet", *tags, *given, folder)


def load(images: Sequence[str], *clusters: str) -> None:
    """Put images into every node of these clusters."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "images.tar"
        run("docker", "save", f"--output={archive}", *images)
        for cluster in clusters:
            run("kind", "load", "image-archive", archive, "--name", cluster)
