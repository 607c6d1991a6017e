"""The address of an API server and our identity there, read from a kubeconfig or from the pod's service account.

A kubeconfig in a Secret comes from anyone who may write that Secret. It may name a server and credentials, but no files
(the operator's own token is one) and no commands, unless it comes from the operator's own machine. Impersonation is
always rejected, and a value of another type than kubectl accepts is an error: nothing is guessed.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import orjson
import yaml

from kubeloop.errors import Conflict, KubeconfigError, ServerFault
from kubeloop.tokens import Token
from kubeloop.words import list_names

MOST_NODES, DEEPEST = 10_000, 20  # values and nesting of a kubeconfig's YAML; enough for hundreds of clusters
LONGEST_URL = 2048  # characters; URLs are in spans and errors
LONGEST_KEY = 8 * 1024  # characters of PEM; an RSA key of 8192 bits blocks the event loop for 50 ms, of 16384 for 250
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REFUSED = {
    **dict.fromkeys(("exec", "auth-provider"), "which is not run here; give it a token instead"),
    **dict.fromkeys(
        ("as", "as-uid", "as-groups", "as-user-extra"),
        "and the operator acts as the user of the credentials alone; give it a token of that other user",
    ),
    **dict.fromkeys(("username", "password"), "which no API server takes any more; give it a token instead"),
}
"""Fields that are rejected in the user of a kubeconfig, and the alternative."""
# Python's defaults without finite-field Diffie-Hellman, which Go does not support. In TLS 1.2 the server chooses the
# group, and one of 10,000 bits would block the event loop for seconds in each handshake.
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9_])?\.?")
_PRINTABLE = re.compile(r"[!-~]+")  # printable ASCII without spaces: it goes into headers

Section = Mapping[str, Any]


_JWT = re.compile(r"[\w-]+\.(?P<claims>[\w-]+)\.[\w-]+", re.ASCII)
LONGEST_TOKEN = 16 * 1024  # characters; those of service accounts have about 1 KiB, and headers allow no more


def read_token(text: str) -> Token | None:
    """Return the claims of a service account token that expires; None for any other token."""
    match = _JWT.fullmatch(text) if len(text) <= LONGEST_TOKEN else None
    if match is None:
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(match["claims"] + "=="))
        since, until = (datetime.fromtimestamp(claims[name], UTC) for name in ("iat", "exp"))
        *_, kind, namespace, account = claims["sub"].split(":")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return None
    return Token(namespace, account, since, until) if kind == "serviceaccount" and since < until else None


def with_token(kubeconfig: str, used: str, renewed: str) -> str:
    """Return the kubeconfig with the token in use replaced by the renewed one.

    Raises ServerFault unless the renewed token, which comes from the cluster, is of the same account and lasts longer.
    Raises Conflict if the kubeconfig does not contain the token in use exactly once.
    """
    old, new = read_token(used), read_token(renewed)
    if old is None or new is None or new.until < old.until:
        raise ServerFault("what the cluster gave for another token is none, or ends sooner than the one in use")
    if (new.namespace, new.account) != (old.namespace, old.account):
        raise ServerFault("what the cluster gave for another token is another account's")
    if kubeconfig.count(used) != 1:
        raise Conflict("the kubeconfig holds another token than the one in use, and is left alone")
    return kubeconfig.replace(used, renewed)


@dataclass(frozen=True, slots=True)
class Access:
    """An API server and our identity there. Equal values reach the same server as the same user."""

    server: str
    authority: str = field(default="", repr=False)
    """The PEM certificates that the server's certificate is verified against; empty for those of this machine."""
    certificate: str = field(default="", repr=False)
    """The client certificate as PEM."""
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """A file with a token that another process renews; it is read again and again."""
    server_name: str | None = None
    """The name to verify in the server's certificate, if it is not the host."""
    proxy: str | None = None
    verify: bool = True

    @property
    def unverified(self) -> str:
        """The reason why the server's identity is not verified by its certificate; empty if it is."""
        if self.server.startswith("http:"):
            return "its server's address begins with http://"
        return "" if self.verify else "it says insecure-skip-tls-verify"

    def without_token(self) -> Access:
        """Return the access without its token, to compare server and user across renewals."""
        return replace(self, token="")

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for connections to the server; raises KubeconfigError."""
        try:
            context = ssl.create_default_context(cadata=self.authority or None)
            # Python 3.13 requires extensions that the CAs of many clusters lack; Go does not.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.set_ciphers(_CIPHERS)
            context.options |= ssl.OP_NO_RENEGOTIATION  # each costs a handshake, and Go's servers ask for none
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate:
                with _write_temporary(f"{self.certificate}\n{self.key}") as path:
                    context.load_cert_chain(path, password=_reject_encrypted)
        # OSError covers SSLError and a full disk; a TypeError means PEM that is not ASCII.
        except (OSError, TypeError, ValueError) as error:
            from kubeloop.client.wording import tls  # noqa: PLC0415 - with aiohttp, which loads for long

            raise KubeconfigError(f"the certificates cannot be used: {tls(error)}") from error
        return context


def read_kubeconfig(
    text: str | bytes, *, folder: Path | None = None, plain_http: bool = False, most: int = MOST_NODES
) -> Access:
    """Return the access of a kubeconfig's current context; raises KubeconfigError.

    `folder` is the base of relative paths; None rejects file names. `plain_http` allows a server without TLS. `most`
    limits the number of values.
    """
    try:
        _check_size(text, most)
        config = yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes less than the safe one
    except (yaml.YAMLError, ValueError, LookupError) as error:  # a LookupError: `!!bool x`
        mark = getattr(error, "problem_mark", None)  # the error's text quotes the line, which may be secret
        where = f" (line {mark.line + 1})" if mark else ""
        raise KubeconfigError(f"the kubeconfig is not YAML{where}: put a whole one there") from None
    if not isinstance(config, dict):
        raise KubeconfigError("the kubeconfig is empty or no object")
    return _parse_access(cast(Section, config), folder, plain_http=plain_http)


class _Loader(yaml.CSafeLoader):
    """A YAML loader in C, ten times as fast as `safe_load`.

    The operator reads thousands of kubeconfigs at its start.

    It creates no numbers and dates: a kubeconfig needs none, and parsing a megabyte of 1:59:59:... takes a minute.
    """


for _tag in ("int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", lambda _, __: object())  # a placeholder


def _check_size(text: str | bytes, most: int) -> None:
    """Raise KubeconfigError for YAML that grows when it is loaded: aliases, too many values or levels."""
    nodes = depth = 0
    events = cast(Iterable[yaml.Event], yaml.parse(text, Loader=yaml.CSafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise KubeconfigError("the kubeconfig has YAML aliases: write out what they stand for")
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if nodes > most or depth > DEEPEST:
            raise KubeconfigError(
                f"the kubeconfig has more than {most:,} values or is nested more than {DEEPEST} levels deep: "
                "give one that says how to reach this cluster and no more"
            )


def in_cluster(host: str, port: str, *, folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of a pod to the API server of its own cluster, as its service account."""
    try:
        authority = (folder / "ca.crt").read_text()
    except OSError as error:
        raise KubeconfigError(f"no service account is mounted: {error.filename}: {error.strerror}") from error
    where = f"[{host}]" if ":" in host else host
    return Access(f"https://{where}:{port}", authority=authority, token_file=folder / "token")


def write_kubeconfig(access: Access) -> str:
    """Return a kubeconfig with the credentials, for a program that needs one."""

    def encode(pem: str) -> str:
        return base64.b64encode(pem.encode()).decode()

    cluster = {
        "server": access.server,
        "certificate-authority-data": encode(access.authority),
        "tls-server-name": access.server_name,
        "proxy-url": access.proxy,
        "insecure-skip-tls-verify": not access.verify,
    }
    user = {
        "client-certificate-data": encode(access.certificate),
        "client-key-data": encode(access.key),
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


def _parse_access(config: Section, folder: Path | None, *, plain_http: bool) -> Access:
    """Parse the current context of a kubeconfig; raises KubeconfigError."""
    context = _find_entry(config, "context", _read_string(config, "current-context"))
    cluster = _find_entry(config, "cluster", _read_string(context, "cluster"))
    user = _find_entry(config, "user", _read_string(context, "user"))
    for rejected, instead in REFUSED.items():
        if user.get(rejected):
            raise KubeconfigError(f"the kubeconfig asks for {rejected}, {instead}")
    certificate, key = _read_pem(user, "client-certificate", folder), _read_pem(user, "client-key", folder)
    if bool(certificate) != bool(key):
        raise KubeconfigError("the kubeconfig has a client certificate without its key, or a key without one")
    if len(key) > LONGEST_KEY:
        raise KubeconfigError(
            f"the kubeconfig's client-key has more than {LONGEST_KEY:,} characters: use one of RSA with 4096 bits, or "
            "of an elliptic curve"
        )
    token = _read_string(user, "token")
    if token and not _PRINTABLE.fullmatch(token):
        raise KubeconfigError("the kubeconfig's token is not one word of printable ASCII")
    authority = _read_pem(cluster, "certificate-authority", folder)
    verify = not _read_bool(cluster, "insecure-skip-tls-verify")
    if authority and not verify:
        raise KubeconfigError(
            "the kubeconfig has a certificate-authority and says insecure-skip-tls-verify, which ignores it; take out "
            "the latter"
        )
    return Access(
        server=_check_server(_read_string(cluster, "server"), plain_http=plain_http),
        authority=authority,
        certificate=certificate,
        key=key,
        token=token,
        token_file=None if token else _file_path(user, "tokenFile", folder),
        server_name=_check_server_name(_read_string(cluster, "tls-server-name")),
        proxy=_check_proxy(_read_string(cluster, "proxy-url")),
        verify=verify,
    )


def _check_server(address: str, *, plain_http: bool) -> str:
    """Return the server's URL.

    Raises KubeconfigError if it is no plain https:// URL, or http:// where that is allowed.
    """
    url = _parse_url(address, "server", "https", "http")
    if url.query or url.fragment or url.username is not None:
        raise KubeconfigError("the kubeconfig's server is more than a host, a port and a path: take out the rest")
    if url.scheme == "http" and not plain_http:
        raise KubeconfigError(
            "the kubeconfig's server begins with http://, so that its credentials could be read on the way; give it an "
            "https:// address"
        )
    return address.rstrip("/")


def _check_proxy(address: str) -> str | None:
    """Return the proxy's URL, or None; raises KubeconfigError."""
    if address:
        _parse_url(address, "proxy-url", "http", "https")
    return address or None


def _parse_url(address: str, field: str, *schemes: str) -> SplitResult:
    """Parse a URL with one of these schemes and a host; raises KubeconfigError, which does not quote it."""
    if len(address) > LONGEST_URL:
        raise KubeconfigError(
            f"the kubeconfig's {field} has more than {LONGEST_URL:,} characters: write no more than a scheme, a host, "
            "a port and a path there"
        )
    with suppress(ValueError):  # such as unbalanced brackets or an invalid port
        url = urlsplit(address)
        if url.scheme in schemes and _is_host(url.hostname or "") and url.port != 0 and _PRINTABLE.fullmatch(address):
            return url
    raise KubeconfigError(f"the kubeconfig's {field} is not a URL of {' or '.join(schemes)}")


def _is_host(host: str) -> bool:
    """True if the value is an IP address or a host name."""
    with suppress(ValueError):
        return bool(ip_address(host))
    return _HOST_NAME.fullmatch(host) is not None


def _check_server_name(name: str) -> str | None:
    """Return the server name, or None; raises KubeconfigError if it is no host name."""
    if name and not _is_host(name):
        raise KubeconfigError("the kubeconfig's tls-server-name is not a host name")
    return name or None


_MISSING_NAMES = {
    "context": "the kubeconfig has no current-context: write the name of the context to use there",
    "cluster": "the kubeconfig's current context names no cluster",
    "user": "the kubeconfig's current context names no user",
}


NAME = 63  # characters of a name that are shown


def _find_entry(config: Section, kind: str, name: str) -> Section:
    """Return the content of a kubeconfig's context, cluster or user of this name; raises KubeconfigError."""
    entries = config.get(f"{kind}s")
    items = cast(list[object], entries) if isinstance(entries, list) else []
    sections = [cast(Section, item) for item in items if isinstance(item, dict)]
    if not name:
        raise KubeconfigError(_MISSING_NAMES[kind])
    matches = [item.get(kind) for item in sections if item.get("name") == name]
    if len(matches) > 1:
        raise KubeconfigError(f"the kubeconfig has more than one {kind} named {name[:NAME]!r}")
    if not matches:
        available = list_names(sorted(str(item.get("name"))[:NAME] for item in sections))
        remedy = (
            f"it has {available}, name one of these" if available else f"it has no {kind}s at all, write a whole one"
        )
        raise KubeconfigError(f"the kubeconfig has no {kind} named {name[:NAME]!r}: {remedy}")
    return cast(Section, matches[0]) if isinstance(matches[0], dict) else {}


def _read_string(section: Section, name: str) -> str:
    """Return a string field, empty if it is missing; raises KubeconfigError for a value of another type."""
    value = section.get(name)
    if value is not None and not isinstance(value, str):
        raise KubeconfigError(f"the kubeconfig's {name} is not a string: put it in quotes")
    return value or ""


def _read_bool(section: Section, name: str) -> bool:
    """Return a boolean field, False if it is missing; raises KubeconfigError for a value of another type."""
    value = section.get(name)
    if value is not None and not isinstance(value, bool):
        raise KubeconfigError(f"the kubeconfig's {name} is neither true nor false: write it without quotes")
    return bool(value)


def _read_pem(section: Section, name: str, folder: Path | None) -> str:
    """Return the content of a PEM field, given as data or as a file; raises KubeconfigError."""
    if data := _read_string(section, f"{name}-data"):
        try:
            content = base64.b64decode("".join(data.split()), validate=True).decode()
        except ValueError:  # invalid base64, or its content is no text
            content = ""
        if not content.strip():
            raise KubeconfigError(f"the kubeconfig's {name}-data is not base64 of a PEM file")
        return content
    path = _file_path(section, name, folder)
    try:
        return path.read_text() if path else ""
    except OSError as error:
        raise KubeconfigError(f"the kubeconfig's {name} cannot be read: {error.strerror}") from error


def _file_path(section: Section, name: str, folder: Path | None) -> Path | None:
    """Return the path in a field, or None; raises KubeconfigError if files are not allowed."""
    path = _read_string(section, name)
    if not path:
        return None
    if folder is None:
        raise KubeconfigError(f"the kubeconfig names a file ({name}), which is not here; give the content instead")
    return folder / path


def _reject_encrypted() -> str:
    """Raise ValueError for an encrypted key. Without this callback OpenSSL would ask at the terminal, and wait."""
    raise ValueError("the key is encrypted, and the operator has no password for it: use a key without one")


@contextmanager
def _write_temporary(text: str) -> Generator[str]:
    """Yield the path of a file with this text for `ssl`, which reads keys from files only. In memory where possible."""
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
