"""A kubeconfig is taken at its word or refused: nothing that it says is guessed, and nothing is left out in silence."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from kubeloop.certificate import Certificate
from kubeloop.client.access import LONGEST_URL, read_kubeconfig, read_token, with_token
from kubeloop.client.certificates import secret_data
from kubeloop.client.kube import connect
from kubeloop.errors import Conflict, KubeconfigError, ServerFault, Unreachable
from kubeloop.tokens import Token

CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
CANARY = "canary-4711"
LONG = "https://example.org/".ljust(LONGEST_URL, "a")


def kubeconfig(*, cluster: Any = (), user: Any = (), **config: Any) -> str:
    whole = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://example.org:6443", **dict(cluster)}}],
        "users": [{"name": "u", "user": {"token": CANARY, **dict(user)}}],
        **config,
    }
    return yaml.safe_dump(whole)


def certified(path: Path) -> Path:
    """A file with a key of RSA, which ciphers with finite fields need, and a certificate for it."""
    key, name = rsa.generate_private_key(65537, 2048), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    since = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(since)
        .not_valid_after(since.replace(year=2036))
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    return path


def field(path: Path) -> Path:
    """A file with a finite field of 2048 bits, or what a client takes for one: nobody looks whether it is prime."""
    der = bytes.fromhex("308201080282010100") + b"\xff" * 256 + bytes.fromhex("020102")
    text = base64.encodebytes(der).decode()
    path.write_text(f"-----BEGIN DH PARAMETERS-----\n{text}-----END DH PARAMETERS-----\n")
    return path


def authority() -> Mapping[str, str]:
    """A key and its certificate."""
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return secret_data(Certificate("a", "authority", since, since.replace(year=2036)), None)


@pytest.mark.parametrize(
    ("cluster", "server", "unverified"),
    [
        ({}, "https://example.org:6443", ""),
        ({"insecure-skip-tls-verify": False}, "https://example.org:6443", ""),
        ({"insecure-skip-tls-verify": True}, "https://example.org:6443", "it says insecure-skip-tls-verify"),
        ({"server": LONG}, LONG, ""),
        ({"server": "https://[fd00::1]:6443/"}, "https://[fd00::1]:6443", ""),
        ({"server": "https://rancher.example/k8s/clusters/c-x"}, "https://rancher.example/k8s/clusters/c-x", ""),
        ({"server": "https://kind_control-plane:6443"}, "https://kind_control-plane:6443", ""),
        ({"proxy-url": "http://us:er@proxy.example:3128"}, "https://example.org:6443", ""),
        ({"tls-server-name": "10.0.0.1"}, "https://example.org:6443", ""),
        ({"certificate-authority-data": f"{CERTIFICATE[:9]}\n{CERTIFICATE[9:]}\n"}, "https://example.org:6443", ""),
    ],
)
def test_what_kubectl_takes_is_taken(cluster: dict[str, Any], server: str, unverified: str) -> None:
    access = read_kubeconfig(kubeconfig(cluster=cluster))

    assert (access.server, access.unverified) == (server, unverified)


@pytest.mark.parametrize("said", ["false", "true", "", "no", 0, 1, [], {}])
def test_only_a_boolean_waives_the_check_of_a_certificate(said: object) -> None:
    with pytest.raises(KubeconfigError, match="insecure-skip-tls-verify is neither true nor false"):
        read_kubeconfig(kubeconfig(cluster={"insecure-skip-tls-verify": said}))


def test_a_server_without_tls_is_refused_unless_that_is_allowed() -> None:
    text = kubeconfig(cluster={"server": "http://example.org:8080"})

    with pytest.raises(KubeconfigError, match="give it an https:// address"):
        read_kubeconfig(text)
    assert read_kubeconfig(text, plain_http=True).unverified == "its server's address begins with http://"


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ({"server": None}, "server is not a URL"),
        ({"server": ["https://example.org"]}, "server is not a string"),
        ({"server": "example.org:6443"}, "server is not a URL"),
        ({"server": "ftp://example.org"}, "server is not a URL"),
        ({"server": "https://[::1"}, "server is not a URL"),
        ({"server": "https://example.org:port"}, "server is not a URL"),
        ({"server": "https://example.org:99999"}, "server is not a URL"),
        ({"server": "https://exam ple.org"}, "server is not a URL"),
        ({"server": f"{LONG}a"}, "server has more than 2,048 characters: write no more"),
        ({"server": "https://example.org\r\nX: y"}, "server is not a URL"),
        ({"server": f"https://{CANARY}:x@example.org"}, "more than a host, a port and a path"),
        ({"server": "https://example.org/?a=b"}, "more than a host, a port and a path"),
        ({"server": "https://example.org/#a"}, "more than a host, a port and a path"),
        ({"proxy-url": "socks5://proxy.example"}, "proxy-url is not a URL of http or https"),
        ({"proxy-url": "http://proxy.example/" + "a" * LONGEST_URL}, "proxy-url has more than 2,048 characters"),
        ({"proxy-url": {"http": "proxy.example"}}, "proxy-url is not a string"),
        ({"tls-server-name": True}, "tls-server-name is not a string"),
        ({"tls-server-name": "exam ple"}, "tls-server-name is not a host name"),
        ({"certificate-authority-data": "????"}, "not base64 of a PEM file"),
        ({"certificate-authority-data": "-----BEGIN CERTIFICATE-----\né"}, "not base64 of a PEM file"),
        ({"certificate-authority-data": "IA=="}, "not base64 of a PEM file"),
        ({"certificate-authority-data": 7}, "certificate-authority-data is not a string"),
        ({"certificate-authority": "/etc/ssl/ca.crt"}, "names a file"),
        (
            {"certificate-authority-data": CERTIFICATE, "insecure-skip-tls-verify": True},
            "has a certificate-authority and says insecure-skip-tls-verify",
        ),
    ],
)
def test_a_cluster_that_is_not_what_kubectl_takes_is_refused(cluster: dict[str, Any], why: str) -> None:
    with pytest.raises(KubeconfigError, match=why) as refused:
        read_kubeconfig(kubeconfig(cluster=cluster))
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ({"as": "system:serviceaccount:team:reader"}, "asks for as, and the operator acts as the user of"),
        ({"as-groups": ["readers"]}, "asks for as-groups"),
        ({"as-uid": "1"}, "asks for as-uid"),
        ({"as-user-extra": {"scopes": ["view"]}}, "asks for as-user-extra"),
        ({"username": "admin", "password": CANARY}, "asks for username, which no API server takes any more"),
        ({"exec": {"command": "sh"}}, "asks for exec"),
        ({"auth-provider": {"name": "gcp"}}, "asks for auth-provider"),
        ({"token": 123}, "token is not a string"),
        ({"token": f"{CANARY}\nX-Remote-Group: system:masters"}, "token is not one word"),
        ({"token": f"{CANARY}é"}, "token is not one word"),
        ({"token": "", "tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}, "names a file"),
        ({"client-certificate": "/etc/passwd", "client-key": "/etc/shadow"}, "names a file"),
        ({"client-certificate-data": CERTIFICATE}, "without its key"),
        ({"client-certificate-data": CERTIFICATE, "client-key-data": f"{CANARY}é"}, "key-data is not base64 of a PEM"),
    ],
)
def test_a_user_that_is_not_what_the_operator_can_be_is_refused(user: dict[str, Any], why: str) -> None:
    with pytest.raises(KubeconfigError, match=why) as refused:
        read_kubeconfig(kubeconfig(user=user))
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"current-context": None}, "has no current-context: write the name"),
        ({"current-context": "d"}, "has no context named 'd': it has c, name one of these"),
        ({"contexts": [{"name": "c", "context": {"cluster": "c"}}]}, "current context names no user"),
        ({"current-context": "d" * 2**19}, "has no context named 'd{63}': it has c"),
        (
            {
                "current-context": "d" * 2**18,
                "contexts": [{"name": "d" * 2**18, "context": {"cluster": one}} for one in "ab"],
            },
            "more than one context named 'd{63}'$",
        ),
        ({"current-context": 1}, "current-context is not a string"),
        ({"clusters": "c"}, "no cluster named 'c'"),
        ({"users": [{"name": "u", "user": {"token": one}} for one in "ab"]}, "more than one user named 'u'"),
    ],
)
def test_what_a_context_names_is_there_once(config: dict[str, Any], why: str) -> None:
    with pytest.raises(KubeconfigError, match=why) as refused:
        read_kubeconfig(kubeconfig(**config))
    assert len(str(refused.value)) < 200


def jwt(**claims: Any) -> str:
    def part(what: Any) -> str:
        return base64.urlsafe_b64encode(orjson.dumps(what)).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part(claims)}.c2lnbmF0dXJl"


OF_ACCOUNT = {"iat": 1000, "exp": 2000, "sub": "system:serviceaccount:modelplane-access:modelplane-operator"}


def test_a_service_accounts_token_says_whose_it_is_and_how_long_it_lasts() -> None:
    since, until = (datetime.fromtimestamp(second, UTC) for second in (1000, 2000))

    assert read_token(jwt(**OF_ACCOUNT)) == Token("modelplane-access", "modelplane-operator", since, until)


@pytest.mark.parametrize(
    "token",
    [
        "",
        CANARY,
        "a.b.c",
        f"{jwt(**OF_ACCOUNT)}\n",
        jwt(iat=1000, sub=OF_ACCOUNT["sub"]),
        jwt(**{**OF_ACCOUNT, "exp": "never"}),
        jwt(**{**OF_ACCOUNT, "exp": 1e300}),
        jwt(**{**OF_ACCOUNT, "exp": 999}),
        jwt(**{**OF_ACCOUNT, "sub": "alice"}),
        jwt(**{**OF_ACCOUNT, "sub": ["system:serviceaccount:a:b"]}),
        jwt(**OF_ACCOUNT, padding="x" * 16384),
    ],
)
def test_any_other_token_is_none_that_can_be_renewed(token: str) -> None:
    assert read_token(token) is None


USED = jwt(**OF_ACCOUNT)


def test_a_renewed_token_takes_the_place_of_the_old_one_and_of_nothing_else() -> None:
    renewed = jwt(**{**OF_ACCOUNT, "iat": 1500, "exp": 2500})
    text = f"# mine\n{kubeconfig(user={'token': USED})}"

    assert with_token(text, USED, renewed) == text.replace(USED, renewed)
    for other in (kubeconfig(), f"{text}{text}"):
        with pytest.raises(Conflict, match="another token than the one in use"):
            with_token(other, USED, renewed)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "is none"),
        (CANARY, "is none"),
        (f'{USED}"\nclusters: [{{name: c, cluster: {{server: "https://evil.example"}}}}]', "is none"),
        (jwt(**{**OF_ACCOUNT, "exp": 1999}), "ends sooner"),
        (jwt(**{**OF_ACCOUNT, "sub": "system:serviceaccount:kube-system:admin"}), "another account's"),
    ],
)
def test_what_a_lying_cluster_gives_for_a_token_is_not_stored(given: str, why: str) -> None:
    with pytest.raises(ServerFault, match=why):
        with_token(kubeconfig(user={"token": USED}), USED, given)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\ncurrent-context: *b", "YAML aliases"),
        ("a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: &c {<<: [*b, *b]}", "YAML aliases"),
        ("&a [*a]", "YAML aliases"),
        ("[" * 500 + "]" * 500, "nested more than 20 levels deep"),
        ("[" * 500_000, "nested more than 20 levels deep"),
        ("a: [" + "x," * 300_000 + "]", "more than 10,000 values"),
        ("current-context: 2026-13-45", "current-context is not a string"),
        (f"current-context: {'59:' * 300_000}59", "current-context is not a string"),  # it takes a minute to add up
        (f"current-context: {'59:' * 300}59.5", "current-context is not a string"),
        ("current-context: !!int ''", "current-context is not a string"),
        ("!!bool x", "is not YAML"),
        ("{[1]: 2}", "is not YAML"),
        ("\0", "is not YAML"),
    ],
    ids=lambda one: one[:20],
)
def test_a_kubeconfig_that_is_more_than_it_looks_like_is_refused(text: str, why: str) -> None:
    with pytest.raises(KubeconfigError, match=why):
        read_kubeconfig(text)


def test_certificates_that_are_no_text_are_refused() -> None:
    data = base64.b64encode("Zürich".encode()).decode()
    with pytest.raises(KubeconfigError, match="certificates cannot be used"):
        read_kubeconfig(kubeconfig(cluster={"certificate-authority-data": data})).tls()


def test_a_key_that_takes_long_to_sign_with_is_refused() -> None:
    data = base64.b64encode(b"k" * 12_632).decode()  # the size of one of RSA with 16384 bits
    with pytest.raises(KubeconfigError, match="client-key has more than 8,192 characters"):
        read_kubeconfig(kubeconfig(user={"client-certificate-data": CERTIFICATE, "client-key-data": data}))


def test_nobody_is_asked_for_the_password_of_a_key() -> None:
    """OpenSSL would ask at the terminal, and all of the operator would wait for the answer."""
    pair = authority()
    key = load_pem_private_key(base64.b64decode(pair["tls.key"]), password=None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    user = {"client-certificate-data": pair["tls.crt"], "client-key-data": base64.b64encode(locked).decode()}

    with pytest.raises(KubeconfigError, match="certificates cannot be used"):
        read_kubeconfig(kubeconfig(user=user)).tls()


@pytest.mark.parametrize(("ciphers", "reached"), [("ECDHE", True), ("kDHE", False)])
async def test_no_server_chooses_a_group_that_takes_seconds_to_compute_in(
    tmp_path: Path, ciphers: str, *, reached: bool
) -> None:
    """In TLS 1.2 it may name any finite field; one of 10,000 bits takes three seconds, on the event loop."""
    pem = certified(tmp_path / "server.pem")
    speaking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaking.load_cert_chain(pem)
    speaking.maximum_version = ssl.TLSVersion.TLSv1_2
    speaking.set_ciphers(ciphers)
    speaking.load_dh_params(field(tmp_path / "field.pem"))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=speaking) as server:
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        access = read_kubeconfig(kubeconfig(cluster={"server": address, "insecure-skip-tls-verify": True}))
        async with connect(access) as kube:
            with nullcontext() if reached else pytest.raises(Unreachable):
                await kube.ping()


def test_no_server_has_us_begin_another_handshake_on_a_connection() -> None:
    assert read_kubeconfig(kubeconfig()).tls().options & ssl.OP_NO_RENEGOTIATION
