"""A kubeconfig is taken at its word or refused: nothing that it says is guessed, and nothing is left out in silence."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from modelplane_operator.clients.access import read_kubeconfig
from modelplane_operator.clients.errors import KubeconfigError

CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
CANARY = "canary-4711"


def kubeconfig(*, cluster: Any = (), user: Any = (), **config: Any) -> str:
    whole = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://example.org:6443", **dict(cluster)}}],
        "users": [{"name": "u", "user": {"token": CANARY, **dict(user)}}],
        **config,
    }
    return yaml.safe_dump(whole)


@pytest.mark.parametrize(
    ("cluster", "server", "unverified"),
    [
        ({}, "https://example.org:6443", ""),
        ({"insecure-skip-tls-verify": False}, "https://example.org:6443", ""),
        ({"insecure-skip-tls-verify": True}, "https://example.org:6443", "it says insecure-skip-tls-verify"),
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

    with pytest.raises(KubeconfigError, match="--http-api-servers=allowed"):
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
        ({"server": "https://example.org\r\nX: y"}, "server is not a URL"),
        ({"server": f"https://{CANARY}:x@example.org"}, "more than a host, a port and a path"),
        ({"server": "https://example.org/?a=b"}, "more than a host, a port and a path"),
        ({"server": "https://example.org/#a"}, "more than a host, a port and a path"),
        ({"proxy-url": "socks5://proxy.example"}, "proxy-url is not a URL of http or https"),
        ({"proxy-url": {"http": "proxy.example"}}, "proxy-url is not a string"),
        ({"tls-server-name": True}, "tls-server-name is not a string"),
        ({"tls-server-name": "exam ple"}, "tls-server-name is not a host name"),
        ({"certificate-authority-data": "????"}, "not base64 of a PEM file"),
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
    ],
)
def test_a_user_that_is_not_what_the_operator_can_be_is_refused(user: dict[str, Any], why: str) -> None:
    with pytest.raises(KubeconfigError, match=why) as refused:
        read_kubeconfig(kubeconfig(user=user))
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"current-context": None}, "no context named ''"),
        ({"current-context": 1}, "current-context is not a string"),
        ({"clusters": "c"}, "no cluster named 'c'"),
        ({"users": [{"name": "u", "user": {"token": one}} for one in "ab"]}, "more than one user named 'u'"),
    ],
)
def test_what_a_context_names_is_there_once(config: dict[str, Any], why: str) -> None:
    with pytest.raises(KubeconfigError, match=why):
        read_kubeconfig(kubeconfig(**config))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\ncurrent-context: *b", "YAML aliases"),
        ("a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: &c {<<: [*b, *b]}", "YAML aliases"),
        ("&a [*a]", "YAML aliases"),
        ("[" * 500 + "]" * 500, "nested more than 20 levels deep"),
        ("[" * 500_000, "nested more than 20 levels deep"),
        ("a: [" + "x," * 300_000 + "]", "more than 10,000 values"),
        ("current-context: 2026-13-45", "is not YAML"),
        ("!!int x", "is not YAML"),
        ("{[1]: 2}", "is not YAML"),
        ("\0", "is not YAML"),
    ],
    ids=["aliases", "merges", "in itself", "nested", "never closed", "long", "no date", "no int", "no key", "no text"],
)
def test_a_kubeconfig_that_is_more_than_it_looks_like_is_refused(text: str, why: str) -> None:
    with pytest.raises(KubeconfigError, match=why):
        read_kubeconfig(text)


def test_certificates_that_are_no_text_are_refused() -> None:
    data = base64.b64encode("Zürich".encode()).decode()
    with pytest.raises(KubeconfigError, match="certificates cannot be used"):
        read_kubeconfig(kubeconfig(cluster={"certificate-authority-data": data})).tls()
