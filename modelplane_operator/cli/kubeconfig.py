"""Kubeconfigs as kubectl reads them: lists of files, contexts, and credentials that a program gives.

The operator runs no such programs. This is the user's own machine, where kubectl runs them too.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from kubeloop.client.access import SERVICE_ACCOUNT, Access, in_cluster, read_kubeconfig
from kubeloop.errors import KubeconfigError

Section = dict[str, Any]

EXEC_SECONDS: Final = 120.0  # somebody may have to sign in
LISTS: Final = ("clusters", "contexts", "users")
PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A hub, and the namespace that is meant when none is named."""

    access: Access
    namespace: str
    context: str


def target(kubeconfig: Path | None, context: str | None, environment: Mapping[str, str] = os.environ) -> HubTarget:
    """What kubectl would talk to; raises KubeconfigError."""
    files = _files(kubeconfig, environment)
    if not files:
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if host and (SERVICE_ACCOUNT / "token").exists():
            return HubTarget(
                in_cluster(host, port or "443"), (SERVICE_ACCOUNT / "namespace").read_text().strip(), "pod"
            )
        raise KubeconfigError("there is no kubeconfig: name one by --kubeconfig or KUBECONFIG")
    config = _merged(files)
    name = context or config["current-context"]
    if not name:
        raise KubeconfigError(f"no context is chosen: name one by --context ({_known(config, 'contexts')})")
    chosen = _named(config, "contexts", name)
    cluster = _named(config, "clusters", chosen.get("cluster", ""))
    user = _named(config, "users", chosen["user"]) if chosen.get("user") else {}
    if "exec" in user:
        user = _executed(user, cluster)
    reduced = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
    }
    access = read_kubeconfig(yaml.safe_dump(reduced), folder=Path("/"), plain_http=True)
    return HubTarget(access, chosen.get("namespace") or "default", name)


def _files(chosen: Path | None, environment: Mapping[str, str]) -> Sequence[Path]:
    if chosen is not None:
        if not chosen.exists():
            raise KubeconfigError(f"there is no file {chosen}")
        return [chosen.absolute()]
    listed = environment.get("KUBECONFIG", "")
    paths = [Path(path) for path in listed.split(os.pathsep) if path] or [Path.home() / ".kube" / "config"]
    return [path.absolute() for path in paths if path.exists()]


def _merged(files: Sequence[Path]) -> Section:
    """All files as one: of two entries with one name the first counts, as it does for kubectl."""
    merged: Section = {"current-context": "", **{kind: {} for kind in LISTS}}
    for file in files:
        try:
            said: Any = yaml.safe_load(file.read_text()) or {}
        except (OSError, yaml.YAMLError):
            raise KubeconfigError(f"{file} cannot be read as YAML") from None
        if not isinstance(said, dict):
            raise KubeconfigError(f"{file} is no kubeconfig")
        config = cast(Section, said)
        merged["current-context"] = merged["current-context"] or config.get("current-context") or ""
        for kind in LISTS:
            for entry in config.get(kind) or ():
                content = dict(entry.get(kind[:-1]) or {})
                merged[kind].setdefault(entry.get("name", ""), _absolute(content, file.parent))
    return merged


def _absolute(content: Section, folder: Path) -> Section:
    """Paths begin where their file is, that of a credential program too when it is a path."""
    content |= {name: str(folder / content[name]) for name in PATHS if content.get(name)}
    program: Section = content.get("exec") or {}
    if "/" in str(program.get("command", "")):
        content["exec"] = {**program, "command": str(folder / program["command"])}
    return content


def _named(config: Section, kind: str, name: str) -> Section:
    if name not in config[kind]:
        raise KubeconfigError(f"there is no {kind[:-1]} {name} ({_known(config, kind)})")
    return config[kind][name]


def _known(config: Section, kind: str) -> str:
    return f"there are {', '.join(sorted(config[kind]))}" if config[kind] else "there are none"


def _executed(user: Section, cluster: Section) -> Section:
    """The user with what its program says; raises KubeconfigError. Nothing that the program says is repeated."""
    asked: Section = user["exec"]
    command = [str(asked.get("command", "")), *map(str, asked.get("args") or ())]
    spec: Section = {"interactive": sys.stdin.isatty() and asked.get("interactiveMode") != "Never"}
    if asked.get("provideClusterInfo"):
        told = {
            "server": cluster.get("server"),
            "certificate-authority-data": cluster.get("certificate-authority-data"),
        }
        spec["cluster"] = {name: value for name, value in told.items() if value}
    info = {"apiVersion": asked.get("apiVersion"), "kind": "ExecCredential", "spec": spec}
    given = {str(one["name"]): str(one["value"]) for one in asked.get("env") or ()}
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if spec["interactive"] else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=EXEC_SECONDS,
            check=True,
        )
        status: Section = json.loads(done.stdout).get("status") or {}
    except FileNotFoundError:
        hint = f": {asked['installHint']}" if asked.get("installHint") else ": install it, or put it on PATH"
        raise KubeconfigError(f"the program {command[0]} for credentials is not there{hint}") from None
    except subprocess.CalledProcessError as error:
        raise KubeconfigError(f"{command[0]} gave no credentials: it ended with {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise KubeconfigError(f"{command[0]} gave no credentials within {EXEC_SECONDS:.0f} s") from None
    except (ValueError, AttributeError):
        raise KubeconfigError(f"{command[0]} gave something else than an ExecCredential") from None
    kept = {name: value for name, value in user.items() if name != "exec"}
    pairs = {"token": "token", "clientCertificateData": "client-certificate-data", "clientKeyData": "client-key-data"}
    for name, field in pairs.items():
        if status.get(name):
            text = str(status[name])
            kept[field] = text if name == "token" else _encoded(text)
    return kept


def _encoded(pem: str) -> str:

    return base64.b64encode(pem.encode()).decode()
