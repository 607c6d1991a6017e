"""How one API server is reached and who we are there: read from a kubeconfig, or from the pod's own service account.

A kubeconfig in a Secret is written by whoever may write that Secret. It may say which server and which credentials,
but it may not name files (the operator's own token is one) or commands to run: those are refused unless the kubeconfig
comes from the operator's own machine.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import yaml

from modelplane_operator.clients.errors import KubeconfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """One API server and our identity there. Two that are equal reach the same server as the same user."""

    server: str
    authority: str = field(default="", repr=False)
    """The certificates that the server's is checked against; empty: those of this machine."""
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """A token that others renew in place: it is read again and again."""
    server_name: str | None = None
    proxy: str | None = None
    verify: bool = True

    def without_token(self) -> Access:
        """The same server and user: a renewed token makes no difference."""
        return replace(self, token="")

    def tls(self) -> ssl.SSLContext:
        """What connections to this server need; raises KubeconfigError."""
        try:
            context = ssl.create_default_context(cadata=self.authority or None)
            # Python 3.13 asks for extensions that the CAs of many clusters lack; Go asks for none of them.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate:
                with _as_file(f"{self.certificate}\n{self.key}") as path:
                    context.load_cert_chain(path)
        except (OSError, ValueError) as error:  # an SSLError is an OSError; so is a disk without room for the key
            raise KubeconfigError(f"the certificates cannot be used: {error}") from error
        return context


def read_kubeconfig(text: str | bytes, *, folder: Path | None = None) -> Access:
    """What the current context of a kubeconfig says; raises KubeconfigError.

    `folder` is where its relative paths begin. Without one it may name no files.
    """
    try:
        config = yaml.load(text, Loader=yaml.CSafeLoader)  # ten times as fast as `safe_load`; a start reads thousands
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # the error's own text quotes the line, which may be a secret
        where = f" (line {mark.line + 1})" if mark else ""
        raise KubeconfigError(f"the kubeconfig is not YAML{where}") from None
    if not isinstance(config, dict):
        raise KubeconfigError("the kubeconfig is empty or no object")
    return _access(cast(Section, config), folder)


def in_cluster(host: str, port: str, *, folder: Path = SERVICE_ACCOUNT) -> Access:
    """How a pod reaches the API server of its own cluster, as its service account."""
    try:
        authority = (folder / "ca.crt").read_text()
    except OSError as error:
        raise KubeconfigError(f"no service account is mounted: {error}") from error
    where = f"[{host}]" if ":" in host else host
    return Access(f"https://{where}:{port}", authority=authority, token_file=folder / "token")


def write_kubeconfig(access: Access) -> str:
    """The kubeconfig for a program that wants one; it holds the credentials."""

    def encoded(pem: str) -> str:
        return base64.b64encode(pem.encode()).decode()

    cluster = {
        "server": access.server,
        "certificate-authority-data": encoded(access.authority),
        "tls-server-name": access.server_name,
        "proxy-url": access.proxy,
        "insecure-skip-tls-verify": not access.verify,
    }
    user = {
        "client-certificate-data": encoded(access.certificate),
        "client-key-data": encoded(access.key),
        "token": access.token,
        "tokenFile": str(access.token_file or ""),
    }
    name = "cluster"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {key: value for key, value in cluster.items() if value}}],
        "users": [{"name": name, "user": {key: value for key, value in user.items() if value}}],
    }
    return yaml.safe_dump(config)


def _access(config: Section, folder: Path | None) -> Access:
    context = _named(config, "context", config.get("current-context") or "")
    cluster = _named(config, "cluster", context.get("cluster") or "")
    user = _named(config, "user", context.get("user") or "")
    server = str(cluster.get("server") or "").rstrip("/")
    if urlsplit(server).scheme not in {"https", "http"} or not urlsplit(server).hostname:
        raise KubeconfigError("the kubeconfig's server is not a URL")
    for refused in ("exec", "auth-provider"):
        if user.get(refused):
            raise KubeconfigError(f"the kubeconfig asks for {refused}, which is not run here; give it a token instead")
    certificate, key = _content(user, "client-certificate", folder), _content(user, "client-key", folder)
    if bool(certificate) != bool(key):
        raise KubeconfigError("the kubeconfig has a client certificate without its key, or a key without one")
    token_file = None if user.get("token") else _file(user, "tokenFile", folder)
    return Access(
        server=server,
        authority=_content(cluster, "certificate-authority", folder),
        certificate=certificate,
        key=key,
        token=str(user.get("token") or ""),
        token_file=token_file,
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        verify=not cluster.get("insecure-skip-tls-verify"),
    )


def _named(config: Section, kind: str, name: str) -> Section:
    entries = config.get(f"{kind}s")
    for entry in cast(list[Any], entries) if isinstance(entries, list) else []:
        if isinstance(entry, dict) and cast(Section, entry).get("name") == name:
            section = cast(Section, entry).get(kind)
            return cast(Section, section) if isinstance(section, dict) else {}
    raise KubeconfigError(f"the kubeconfig has no {kind} named {name!r}")


def _content(section: Section, name: str, folder: Path | None) -> str:
    if data := section.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=False).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise KubeconfigError(f"the kubeconfig's {name}-data is not base64 of a PEM file") from None
    path = _file(section, name, folder)
    try:
        return path.read_text() if path else ""
    except OSError as error:
        raise KubeconfigError(f"the kubeconfig's {name} cannot be read: {error.strerror}") from error


def _file(section: Section, name: str, folder: Path | None) -> Path | None:
    named = section.get(name)
    if not named:
        return None
    if folder is None:
        raise KubeconfigError(f"the kubeconfig names a file ({name}), which is not here; give the content instead")
    return folder / str(named)


@contextmanager
def _as_file(text: str) -> Generator[str]:
    """A path for `ssl`, which reads private keys from files only: in memory where the system can do that."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with os.fdopen(os.memfd_create("credentials"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w") as file:  # only its owner may read it
            file.write(text)
            file.flush()
            yield file.name
