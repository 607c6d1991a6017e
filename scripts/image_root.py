"""The root of the operator's image: a Python, what the operator imports, and no more of a system than that takes.

Runs in the first stage of the Dockerfile, by the Python of the environment that the packages are in, and needs nothing
but its standard library. There is no shell in what it makes, and no package manager.
"""

from __future__ import annotations

import argparse
import importlib
import py_compile
import re
import shutil
import site
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = (
    "modelplane_operator.__main__",
    "kubeloop.otlp",
    "modelplane_operator.routing.service.key_service",
    "modelplane_operator.host",
    "modelplane_operator.hydrate.__main__",
    "modelplane_operator.cli.__main__",
    "boto3",
    "google.cloud.container_v1",
    "huggingface_hub",
)
"""What starts in the image, and what is loaded later: all that these import is compiled, and nothing else."""
AWS = ("ec2", "efs", "eks", "elb", "elbv2", "iam", "s3", "service-quotas", "signin", "sso", "sso-oidc", "sts")
"""The services of AWS that are asked; the SDK's descriptions of the other four hundred are most of its size."""
NOT_NEEDED = (
    "config-*",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
)
"""Of the standard library."""
ACCOUNT = "modelplane:x:65532:65532:modelplane:/tmp:/sbin/nologin\n"
ETC = {
    "etc/passwd": ACCOUNT,
    "etc/group": "modelplane:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="a folder that is not there yet, to become /")
    root = parser.parse_args().root
    environment = Path(sys.prefix)
    packages = Path(site.getsitepackages()[0])
    prune(packages)
    copy(environment, root, "__pycache__")
    copy(Path(sysconfig.get_path("stdlib")), root, "__pycache__", "site-packages", *NOT_NEEDED)
    compile_all(root)
    interpreter = Path(sys.executable)
    while interpreter.is_symlink():  # python -> python3 -> /usr/bin/python3 -> python3.11
        interpreter = interpreter.parent / interpreter.readlink()
        copy_link(interpreter, root)
    for library in sorted(libraries(interpreter, packages, Path(sysconfig.get_path("stdlib")) / "lib-dynload")):
        copy(library, root)
    for path in certificates():
        copy(path, root)
    for name, text in ETC.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "tmp").mkdir(mode=0o1777, exist_ok=True)
    (root / "tmp").chmod(0o1777)


def prune(packages: Path) -> None:
    """Take out of an environment what no program of ours reads."""
    data = packages / "botocore" / "data"
    for folder in data.iterdir() if data.exists() else ():
        if folder.is_dir() and folder.name not in AWS:
            shutil.rmtree(folder)
    for pattern in ("**/__pycache__", "**/tests", "pip", "pip-*", "setuptools", "setuptools-*"):
        for path in [*packages.glob(pattern)]:
            shutil.rmtree(path, ignore_errors=True)
    for path in [*packages.rglob("*.pyi"), *packages.rglob("*.pyx"), *packages.rglob("*.c"), *packages.rglob("*.h")]:
        path.unlink()


def compile_all(root: Path) -> None:
    """Compile what the programs import: their user may write nothing, and would compile it at every start.

    By the hash of the source and never by its time: copying changes that.
    """
    for name in PROGRAMS:
        importlib.import_module(name)
    for file in sorted({getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}):
        below = root / file.lstrip("/")
        if file.endswith(".py") and below.exists():
            how = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(below), dfile=file, doraise=True, invalidation_mode=how)


def copy(path: Path, root: Path, *but: str) -> None:
    """Put a file or folder at the same place below the root, with the links on the way to it."""
    place = root / path.relative_to("/")
    real = path.parent.resolve() / path.name
    if real != path:
        link_parents(path, root)
        place = root / real.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        ignore = shutil.ignore_patterns(*but) if but else None
        shutil.copytree(real, place, symlinks=True, ignore=ignore, dirs_exist_ok=True)
    elif not place.exists():
        shutil.copy2(real, place)


def copy_link(path: Path, root: Path) -> None:
    """The same of a program that may be a link to another one."""
    place = root / path.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() and not place.is_symlink():
        place.symlink_to(path.readlink())
    elif not path.is_symlink():
        copy(path, root)


def link_parents(path: Path, root: Path) -> None:
    """Make the links that a path goes through: /lib on a system where that is usr/lib."""
    for parent in reversed(path.parents):
        if parent.is_symlink() and not (link := root / parent.relative_to("/")).is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(parent.readlink())
            (root / parent.resolve().relative_to("/")).mkdir(parents=True, exist_ok=True)


def libraries(*places: Path) -> Iterator[Path]:
    """The shared libraries of the system that a program, and all extensions in folders, are linked against."""
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*.so*"))]
    found = set[Path]()
    for file in files:
        said = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        found |= {Path(one) for one in LIBRARY.findall(said)}
    for path in found:
        beside = [
            path.parent / name for name in ("libgcc_s.so.1", "libnss_dns.so.2", "libresolv.so.2")
        ]  # by name, later
        yield from (one for one in (path, *beside) if one.exists() and not one.is_relative_to(sys.prefix))


def certificates() -> Iterator[Path]:
    """The authorities that the system trusts, and where its OpenSSL looks for them."""
    told = ssl.get_default_verify_paths()
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    for name in (told.openssl_cafile, str(bundle), "/etc/ssl/openssl.cnf"):
        if Path(name).exists():
            yield Path(name).parent.resolve() / Path(name).name


if __name__ == "__main__":
    main()
