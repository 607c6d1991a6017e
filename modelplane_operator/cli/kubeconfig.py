"""Read kubeconfigs as kubectl does: several files, contexts, and credential plugins.

Every command that connects to a cluster calls `target`. Files are merged and reduced to one context here;
`read_kubeconfig` then converts this context to an Access.

The operator runs no plugins. This code runs on the user's machine, where kubectl runs them, too.
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

EXEC_SECONDS: Final = 120.0  # the user may have to sign in
LISTS: Final = ("clusters", "contexts", "users")
"""Sections of a kubeconfig that hold lists of named entries."""
PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields with a path, relative to the file that has it."""


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A hub, and the default namespace of its context."""

    access: Access
    """Address and credentials of the API server."""
    namespace: str
    """Namespace for commands without one."""
    context: str
    """Name of the context."""


def target(kubeconfig: Path | None, context: str | None, environment: Mapping[str, str] = os.environ) -> HubTarget:
    """Return the hub that kubectl would connect to. Raise KubeconfigError."""
    files = _files(kubeconfig, environment)
    if not files:
        # Inside of a pod, kubectl uses the pod's service account as well.
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if host and (SERVICE_ACCOUNT / "token").exists():
            return HubTarget(
                in_cluster(host, port or "443"), (SERVICE_ACCOUNT / "namespace").read_text().strip(), "pod"
            )
        raise KubeconfigError("there is no kubeconfig: name one by --kubeconfig or KUBECONFIG")
    config = _merge(files)
    name = context or config["current-context"]
    if not name:
        raise KubeconfigError(f"no context is chosen: name one by --context ({_describe_names(config, 'contexts')})")
    chosen = _entry(config, "contexts", name)
    cluster = _entry(config, "clusters", chosen.get("cluster", ""))
    user = _entry(config, "users", chosen["user"]) if chosen.get("user") else {}
    if "exec" in user:
        user = _run_plugin(user, cluster)
    # The names do not matter, since the result has exactly one context.
    reduced = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
    }
    access = read_kubeconfig(yaml.safe_dump(reduced), folder=Path("/"), plain_http=True)
    return HubTarget(access, chosen.get("namespace") or "default", name)


def _files(chosen: Path | None, environment: Mapping[str, str]) -> Sequence[Path]:
    """Return the kubeconfig files that exist. Raise KubeconfigError if the chosen one does not."""
    if chosen is not None:
        if not chosen.exists():
            raise KubeconfigError(f"there is no file {chosen}")
        return [chosen.absolute()]
    variable = environment.get("KUBECONFIG", "")
    paths = [Path(path) for path in variable.split(os.pathsep) if path] or [Path.home() / ".kube" / "config"]
    return [path.absolute() for path in paths if path.exists()]


def _merge(files: Sequence[Path]) -> Section:
    """Merge all files. The first of several entries with one name counts, as in kubectl."""
    merged: Section = {"current-context": "", **{kind: {} for kind in LISTS}}
    for file in files:
        try:
            parsed: Any = yaml.safe_load(file.read_text()) or {}
        except (OSError, yaml.YAMLError):
            raise KubeconfigError(f"{file} cannot be read as YAML") from None
        if not isinstance(parsed, dict):
            raise KubeconfigError(f"{file} is no kubeconfig")
        config = cast(Section, parsed)
        merged["current-context"] = merged["current-context"] or config.get("current-context") or ""
        for kind in LISTS:
            for entry in config.get(kind) or ():
                # The entry of `clusters` has its content in `cluster`, and so on: the singular.
                content = dict(entry.get(kind[:-1]) or {})
                merged[kind].setdefault(entry.get("name", ""), _resolve_paths(content, file.parent))
    return merged


def _resolve_paths(content: Section, folder: Path) -> Section:
    """Resolve paths relative to their file's folder, also the path of a credential plugin."""
    content |= {name: str(folder / content[name]) for name in PATHS if content.get(name)}
    # A command without a slash is looked up in PATH.
    program: Section = content.get("exec") or {}
    if "/" in str(program.get("command", "")):
        content["exec"] = {**program, "command": str(folder / program["command"])}
    return content


def _entry(config: Section, kind: str, name: str) -> Section:
    """Return an entry by its name. Raise KubeconfigError if there is none."""
    if name not in config[kind]:
        raise KubeconfigError(f"there is no {kind[:-1]} {name} ({_describe_names(config, kind)})")
    return config[kind][name]


def _describe_names(config: Section, kind: str) -> str:
    """Return the available names of a section, for an error message."""
    return f"there are {', '.join(sorted(config[kind]))}" if config[kind] else "there are none"


def _run_plugin(user: Section, cluster: Section) -> Section:
    """Return the user with the credentials of its plugin.

    Raise KubeconfigError, with a message that quotes no output.
    """
    plugin: Section = user["exec"]
    command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())]
    # The plugin learns by an environment variable for which cluster and how it may ask, as in client-go.
    spec: Section = {"interactive": sys.stdin.isatty() and plugin.get("interactiveMode") != "Never"}
    if plugin.get("provideClusterInfo"):
        cluster_info = {
            "server": cluster.get("server"),
            "certificate-authority-data": cluster.get("certificate-authority-data"),
        }
        spec["cluster"] = {name: value for name, value in cluster_info.items() if value}
    info = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": spec}
    variables = {str(variable["name"]): str(variable["value"]) for variable in plugin.get("env") or ()}
    try:
        process = subprocess.run(
            command,
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            # Standard error stays the terminal's, where plugins print the address to sign in at.
            stdin=None if spec["interactive"] else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=EXEC_SECONDS,
            check=True,
        )
        status: Section = json.loads(process.stdout).get("status") or {}
    except FileNotFoundError:
        hint = f": {plugin['installHint']}" if plugin.get("installHint") else ": install it, or put it on PATH"
        raise KubeconfigError(f"the program {command[0]} for credentials is not installed{hint}") from None
    except subprocess.CalledProcessError as error:
        raise KubeconfigError(f"{command[0]} gave no credentials: it ended with {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise KubeconfigError(f"{command[0]} gave no credentials within {EXEC_SECONDS:.0f} s") from None
    except (ValueError, AttributeError):
        raise KubeconfigError(f"{command[0]} gave something else than an ExecCredential") from None
    credentials = {name: value for name, value in user.items() if name != "exec"}
    pairs = {"token": "token", "clientCertificateData": "client-certificate-data", "clientKeyData": "client-key-data"}
    for name, field in pairs.items():
        if status.get(name):
            # An ExecCredential has certificates as PEM, a kubeconfig as base64 of it.
            text = str(status[name])
            credentials[field] = text if name == "token" else base64.b64encode(text.encode()).decode()
    return credentials
