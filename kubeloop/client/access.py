"""How one API server is reached and who we are there: read from a kubeconfig, or from the pod's own service account.

A kubeconfig in a Secret is written by whoever may write that Secret. It may say which server and which credentials,
but it may not name files (the operator's own token is one) or commands to run: those are refused unless the kubeconfig
comes from the operator's own machine. What asks for another identity than that of its credentials is refused wherever
it comes from, and a value of another type than kubectl takes is an error: nothing is guessed.
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
from kubeloop.words import listed

MOST_NODES, DEEPEST = 10_000, 20  # of the YAML of a kubeconfig: hundreds of clusters
LONGEST_URL = 2048  # characters: of what most programs take; it is in spans and in errors
LONGEST_KEY = 8 * 1024  # characters of PEM: RSA of 8192 bits signs in 50 ms, on the event loop; of 16384 in 250
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REFUSED = {
    **dict.fromkeys(("exec", "auth-provider"), "which is not run here; give it a token instead"),
    **dict.fromkeys(
        ("as", "as-uid", "as-groups", "as-user-extra"),
        "and the operator acts as the user of the credentials alone; give it a token of that other user",
    ),
    **dict.fromkeys(("username", "password"), "which no API server takes any more; give it a token instead"),
}
"""What a kubeconfig's user may not ask for, and what to do instead."""
# As Python has them, but without groups of finite fields. No API server needs these: Go speaks none. In TLS 1.2 the
# server chooses the group, and with one of 10,000 bits each handshake holds the event loop for seconds.
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9_])?\.?")
_WORD = re.compile(r"[!-~]+")  # printable ASCII without spaces: it goes into headers

Section = Mapping[str, Any]


_JWT = re.compile(r"[\w-]+\.(?P<claims>[\w-]+)\.[\w-]+", re.ASCII)
LONGEST_TOKEN = 16 * 1024  # of a service account's some 1 KiB, and more than any API server takes in a header


def read_token(text: str) -> Token | None:
    """A service account's token that ends some day; None for any other."""
    read = _JWT.fullmatch(text) if len(text) <= LONGEST_TOKEN else None
    if read is None:
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(read["claims"] + "=="))
        since, until = (datetime.fromtimestamp(claims[name], UTC) for name in ("iat", "exp"))
        *_, kind, namespace, account = claims["sub"].split(":")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return None
    return Token(namespace, account, since, until) if kind == "serviceaccount" and since < until else None


def with_token(kubeconfig: str, used: str, renewed: str) -> str:
    """A kubeconfig with another token in the place of the one in use, and nothing else changed.

    The cluster gave it, and it goes into a Secret of the hub: raises ServerFault unless it is the same account's and
    lasts longer, and Conflict when the kubeconfig does not hold the one in use.
    """
    before, after = read_token(used), read_token(renewed)
    if before is None or after is None or after.until < before.until:
        raise ServerFault("what the cluster gave for another token is none, or ends sooner than the one in use")
    if (after.namespace, after.account) != (before.namespace, before.account):
        raise ServerFault("what the cluster gave for another token is another account's")
    if kubeconfig.count(used) != 1:
        raise Conflict("the kubeconfig holds another token than the one in use, and is left alone")
    return kubeconfig.replace(used, renewed)


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

    @property
    def unverified(self) -> str:
        """Why nobody can tell whether it is that server who answers; empty when it proves that by its certificate."""
        if self.server.startswith("http:"):
            return "its server's address begins with http://"
        return "" if self.verify else "it says insecure-skip-tls-verify"

    def without_token(self) -> Access:
        """The same server and user: a renewed token makes no difference."""
        return replace(self, token="")

    def tls(self) -> ssl.SSLContext:
        """What connections to this server need; raises KubeconfigError."""
        try:
            context = ssl.create_default_context(cadata=self.authority or None)
            # Python 3.13 asks for extensions that the CAs of many clusters lack; Go asks for none of them.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.set_ciphers(_CIPHERS)
            context.options |= ssl.OP_NO_RENEGOTIATION  # each is another handshake, and Go's servers ask for none
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate:
                with _as_file(f"{self.certificate}\n{self.key}") as path:
                    context.load_cert_chain(path, password=_no_password)
        # An SSLError is an OSError, and so is a disk without room for the key; a TypeError is a PEM that is not ASCII.
        except (OSError, TypeError, ValueError) as error:
            from kubeloop.client.wording import tls  # noqa: PLC0415 - with aiohttp, which loads for long

            raise KubeconfigError(f"the certificates cannot be used: {tls(error)}") from error
        return context


def read_kubeconfig(
    text: str | bytes, *, folder: Path | None = None, plain_http: bool = False, most: int = MOST_NODES
) -> Access:
    """What the current context of a kubeconfig says; raises KubeconfigError.

    `folder` is where its relative paths begin. Without one it may name no files. `plain_http`: its server may be one
    that speaks no TLS. `most`: how many values it may have.
    """
    try:
        _bounded(text, most)
        config = yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes less than the safe one
    except (yaml.YAMLError, ValueError, LookupError) as error:  # a LookupError: `!!bool x`
        mark = getattr(error, "problem_mark", None)  # the error's own text quotes the line, which may be a secret
        where = f" (line {mark.line + 1})" if mark else ""
        raise KubeconfigError(f"the kubeconfig is not YAML{where}: put a whole one there") from None
    if not isinstance(config, dict):
        raise KubeconfigError("the kubeconfig is empty or no object")
    return _access(cast(Section, config), folder, plain_http=plain_http)


class _Loader(yaml.CSafeLoader):
    """Ten times as fast as `safe_load`; a start reads thousands.

    It makes no numbers and no dates: nothing of a kubeconfig is one, and 1:59:59:... of a megabyte takes a minute.
    """


def _unmade(_: yaml.CSafeLoader, __: yaml.Node) -> object:
    return object()


for _tag in ("int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _unmade)


def _bounded(text: str | bytes, most: int) -> None:
    """Refuse YAML that becomes more than it looks like, before it does: aliases of aliases, a nest of lists."""
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
    """How a pod reaches the API server of its own cluster, as its service account."""
    try:
        authority = (folder / "ca.crt").read_text()
    except OSError as error:
        raise KubeconfigError(f"no service account is mounted: {error.filename}: {error.strerror}") from error
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


def _access(config: Section, folder: Path | None, *, plain_http: bool) -> Access:
    context = _named(config, "context", _text(config, "current-context"))
    cluster = _named(config, "cluster", _text(context, "cluster"))
    user = _named(config, "user", _text(context, "user"))
    for refused, instead in REFUSED.items():
        if user.get(refused):
            raise KubeconfigError(f"the kubeconfig asks for {refused}, {instead}")
    certificate, key = _content(user, "client-certificate", folder), _content(user, "client-key", folder)
    if bool(certificate) != bool(key):
        raise KubeconfigError("the kubeconfig has a client certificate without its key, or a key without one")
    if len(key) > LONGEST_KEY:
        raise KubeconfigError(
            f"the kubeconfig's client-key has more than {LONGEST_KEY:,} characters: use one of RSA with 4096 bits, or "
            "of an elliptic curve"
        )
    token = _text(user, "token")
    if token and not _WORD.fullmatch(token):
        raise KubeconfigError("the kubeconfig's token is not one word of printable ASCII")
    authority = _content(cluster, "certificate-authority", folder)
    verify = not _flag(cluster, "insecure-skip-tls-verify")
    if authority and not verify:
        raise KubeconfigError(
            "the kubeconfig has a certificate-authority and says insecure-skip-tls-verify, which ignores it; take out "
            "the latter"
        )
    return Access(
        server=_server(_text(cluster, "server"), plain_http=plain_http),
        authority=authority,
        certificate=certificate,
        key=key,
        token=token,
        token_file=None if token else _file(user, "tokenFile", folder),
        server_name=_server_name(_text(cluster, "tls-server-name")),
        proxy=_proxy(_text(cluster, "proxy-url")),
        verify=verify,
    )


def _server(said: str, *, plain_http: bool) -> str:
    url = _url(said, "server", "https", "http")
    if url.query or url.fragment or url.username is not None:
        raise KubeconfigError("the kubeconfig's server is more than a host, a port and a path: take out the rest")
    if url.scheme == "http" and not plain_http:
        raise KubeconfigError(
            "the kubeconfig's server begins with http://, so that its credentials could be read on the way; give it an "
            "https:// address, or start the operator with --http-api-servers=allowed"
        )
    return said.rstrip("/")


def _proxy(said: str) -> str | None:
    if said:
        _url(said, "proxy-url", "http", "https")
    return said or None


def _url(said: str, field: str, *schemes: str) -> SplitResult:
    """A URL of one of these schemes that names a host; raises KubeconfigError, which does not quote it."""
    if len(said) > LONGEST_URL:
        raise KubeconfigError(
            f"the kubeconfig's {field} has more than {LONGEST_URL:,} characters: write no more than a scheme, a host, "
            "a port and a path there"
        )
    with suppress(ValueError):  # brackets that do not match, a port that is no number
        url = urlsplit(said)
        if url.scheme in schemes and _is_host(url.hostname or "") and url.port != 0 and _WORD.fullmatch(said):
            return url
    raise KubeconfigError(f"the kubeconfig's {field} is not a URL of {' or '.join(schemes)}")


def _is_host(said: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(said))
    return _HOST_NAME.fullmatch(said) is not None


def _server_name(said: str) -> str | None:
    if said and not _is_host(said):
        raise KubeconfigError("the kubeconfig's tls-server-name is not a host name")
    return said or None


_UNNAMED = {
    "context": "the kubeconfig has no current-context: write the name of the context to use there",
    "cluster": "the kubeconfig's current context names no cluster",
    "user": "the kubeconfig's current context names no user",
}


NAME = 63  # characters that are told of one


def _named(config: Section, kind: str, name: str) -> Section:
    entries = config.get(f"{kind}s")
    every = cast(list[object], entries) if isinstance(entries, list) else []
    sections = [cast(Section, one) for one in every if isinstance(one, dict)]
    if not name:
        raise KubeconfigError(_UNNAMED[kind])
    found = [one.get(kind) for one in sections if one.get("name") == name]
    if len(found) > 1:
        raise KubeconfigError(f"the kubeconfig has more than one {kind} named {name[:NAME]!r}")
    if not found:
        has = listed(sorted(str(one.get("name"))[:NAME] for one in sections))
        remedy = f"it has {has}, name one of these" if has else f"it has no {kind}s at all, write a whole one"
        raise KubeconfigError(f"the kubeconfig has no {kind} named {name[:NAME]!r}: {remedy}")
    return cast(Section, found[0]) if isinstance(found[0], dict) else {}


def _text(section: Section, name: str) -> str:
    """What a field says; empty when it is not there. A value of another type is nobody's intention."""
    value = section.get(name)
    if value is not None and not isinstance(value, str):
        raise KubeconfigError(f"the kubeconfig's {name} is not a string: put it in quotes")
    return value or ""


def _flag(section: Section, name: str) -> bool:
    value = section.get(name)
    if value is not None and not isinstance(value, bool):
        raise KubeconfigError(f"the kubeconfig's {name} is neither true nor false: write it without quotes")
    return bool(value)


def _content(section: Section, name: str, folder: Path | None) -> str:
    if data := _text(section, f"{name}-data"):
        try:
            content = base64.b64decode("".join(data.split()), validate=True).decode()
        except ValueError:  # of what is no base64, no ASCII, or no text within
            content = ""
        if not content.strip():
            raise KubeconfigError(f"the kubeconfig's {name}-data is not base64 of a PEM file")
        return content
    path = _file(section, name, folder)
    try:
        return path.read_text() if path else ""
    except OSError as error:
        raise KubeconfigError(f"the kubeconfig's {name} cannot be read: {error.strerror}") from error


def _file(section: Section, name: str, folder: Path | None) -> Path | None:
    named = _text(section, name)
    if not named:
        return None
    if folder is None:
        raise KubeconfigError(f"the kubeconfig names a file ({name}), which is not here; give the content instead")
    return folder / named


def _no_password() -> str:
    """For a key that is encrypted: without it OpenSSL asks whoever is at the terminal, and waits."""
    raise ValueError("the key is encrypted, and nobody knows its password")


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
