"""URLs of endpoints: which are read, and which are refused and why."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.routing.endpoint.backend_url import (
    EVERYWHERE,
    Backend,
    InvalidUrl,
    Reach,
    UrlFault,
    check_resolved,
    parse_url,
    read_url,
)

READ = {
    "http://34.55.100.10/v1": "http://34.55.100.10:80",
    "https://api.together.xyz/": "https://api.together.xyz:443",
    "HTTPS://Api.Example.COM.:8443/a?b=c#d": "https://api.example.com:8443",
    "http://models.example.com:443": "http://models.example.com:443",
    "http://models.example.com:": "http://models.example.com:80",
    "http://10.0.0.1": "http://10.0.0.1:80",  # workload gateways live on private networks
    "http://100.64.0.1:8080": "http://100.64.0.1:8080",
    "http://[2001:DB8:0:0::1]:8080/x": "http://[2001:db8::1]:8080",
    "http://a.example#@b.example": "http://a.example:80",
    "https://xn--bcher-kva.example": "https://xn--bcher-kva.example:443",
}

REFUSED = {
    # not a URL, or not one that everybody reads alike
    "not-a-url": UrlFault.MALFORMED,
    "": UrlFault.MALFORMED,
    "//host.example": UrlFault.MALFORMED,
    "http:/host.example": UrlFault.MALFORMED,
    " http://host.example": UrlFault.MALFORMED,
    "http://host.example\n": UrlFault.MALFORMED,
    "http://host.example/a b": UrlFault.MALFORMED,
    "http://host.example\\@evil.example": UrlFault.MALFORMED,
    "http://１２７.0.0.1": UrlFault.MALFORMED,  # full-width digits  # noqa: RUF001
    "http://host.example。": UrlFault.MALFORMED,
    "http://2001:db8::1/": UrlFault.MALFORMED,
    "ftp://host.example": UrlFault.SCHEME,
    "file:///etc/passwd": UrlFault.SCHEME,
    "unix:///run/docker.sock": UrlFault.SCHEME,
    "https://me:secret@host.example": UrlFault.CREDENTIALS,
    "https://host.example@evil.example": UrlFault.CREDENTIALS,
    "http://host.example:0": UrlFault.PORT,
    "http://host.example:65536": UrlFault.PORT,
    "http://host.example:+80": UrlFault.PORT,
    "http://host.example:80:80": UrlFault.MALFORMED,
    # hosts
    "http://": UrlFault.HOST,
    "http://:80": UrlFault.HOST,
    "http://host..example": UrlFault.HOST,
    "http://host.example..": UrlFault.HOST,
    "http://-host.example": UrlFault.HOST,
    "http://host_name.example": UrlFault.HOST,
    "http://%6c%6fcalhost": UrlFault.HOST,
    f"http://{'a' * 64}.example": UrlFault.HOST,
    "http://[::1": UrlFault.MALFORMED,
    "http://[not-an-address]": UrlFault.HOST,
    "http://[fe80::1%25eth0]": UrlFault.HOST,
    "http://[fe80::1%eth0]": UrlFault.HOST,
    # other spellings of IPv4
    "http://2130706433": UrlFault.HOST,
    "http://0x7f000001": UrlFault.HOST,
    "http://017700000001": UrlFault.HOST,
    "http://127.1": UrlFault.HOST,
    "http://0x7f.0.0.1": UrlFault.HOST,
    "http://0177.0.0.1": UrlFault.HOST,
    "http://10.0.0.01": UrlFault.HOST,
    "http://10.0.0.256": UrlFault.HOST,
    "http://10.0.0.0x1": UrlFault.HOST,
    "http://1.2.3.4.5": UrlFault.HOST,
    "http://[::ffff:10.0.0.1]": UrlFault.HOST,
    "http://[::ffff:7f00:1]": UrlFault.HOST,
    # places that are not a tenant's to dial
    "http://127.0.0.1": UrlFault.FORBIDDEN,
    "http://127.0.0.1.": UrlFault.FORBIDDEN,
    "http://127.255.255.254": UrlFault.FORBIDDEN,
    "http://0.0.0.0": UrlFault.FORBIDDEN,
    "http://[::1]": UrlFault.FORBIDDEN,
    "http://[::]": UrlFault.FORBIDDEN,
    "http://[::127.0.0.1]": UrlFault.FORBIDDEN,
    "http://[2002:7f00:1::]": UrlFault.FORBIDDEN,
    "http://[64:ff9b::169.254.169.254]": UrlFault.FORBIDDEN,
    "http://169.254.169.254/latest/meta-data": UrlFault.FORBIDDEN,
    "http://169.254.1.1": UrlFault.FORBIDDEN,
    "http://[fe80::1]": UrlFault.FORBIDDEN,
    "http://[fd00:ec2::254]": UrlFault.FORBIDDEN,
    "http://100.100.100.200": UrlFault.FORBIDDEN,
    "http://168.63.129.16": UrlFault.FORBIDDEN,
    "http://224.0.0.1": UrlFault.FORBIDDEN,
    "http://255.255.255.255": UrlFault.FORBIDDEN,
    "http://[ff02::1]": UrlFault.FORBIDDEN,
    "http://localhost": UrlFault.FORBIDDEN,
    "http://LOCALHOST.": UrlFault.FORBIDDEN,
    "http://a.localhost": UrlFault.FORBIDDEN,
    "http://redis": UrlFault.FORBIDDEN,
    "http://kubernetes.default.svc": UrlFault.FORBIDDEN,
    "http://kubernetes.default.svc.": UrlFault.FORBIDDEN,
    "http://kubernetes.default.svc.cluster.local": UrlFault.FORBIDDEN,
    "http://metadata.google.internal": UrlFault.FORBIDDEN,
}


@pytest.mark.parametrize(("url", "backend"), READ.items())
def test_url_leads_to_a_backend(url: str, backend: str) -> None:
    assert str(parse_url(url)) == backend


@pytest.mark.parametrize(("url", "fault"), REFUSED.items())
def test_url_is_refused(url: str, fault: UrlFault) -> None:
    found = parse_url(url)

    assert isinstance(found, InvalidUrl)
    assert found.fault == fault


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://mock.ml-team.svc:8000", ".svc"),
        ("http://localhost:8000", "localhost"),
        ("http://127.0.0.1:8000", "127.0.0.0/8"),
        ("http://169.254.7.7", "169.254.7.7"),
    ],
)
def test_settings_allow_what_the_rules_refuse(url: str, allowed: str) -> None:
    assert isinstance(parse_url(url), InvalidUrl)
    assert isinstance(parse_url(url, Reach(allowed=(allowed,))), Backend)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://0.0.0.0", "http://[::1]", "http://[64:ff9b::127.0.0.1]"]
)
@pytest.mark.parametrize("wide", ["0.0.0.0/0", "::/0", "64.0.0.0/2", "64:ff9b::/96"])
def test_settings_that_allow_a_wide_network_do_not_mean_the_gateways_own_machine(url: str, wide: str) -> None:
    assert isinstance(parse_url(url, Reach(allowed=(wide,))), InvalidUrl)


@pytest.mark.parametrize(
    "url", ["http://10.96.0.1", "http://kubernetes.default.svc.k8s.example", "http://[2002:a60:1::]"]
)
def test_settings_refuse_the_hubs_own_networks(url: str) -> None:
    assert isinstance(parse_url(url), Backend)
    assert isinstance(parse_url(url, Reach(refused=("10.96.0.0/12", ".k8s.example"))), InvalidUrl)


def test_a_refusal_never_repeats_a_password() -> None:
    found = parse_url("https://me:hunter2@host.example/")

    assert isinstance(found, InvalidUrl)
    assert "hunter2" not in found.message


@given(url=st.text() | st.from_regex(r"https?://[^/]*(:[0-9]*)?(/.*)?", fullmatch=True))
def test_any_text_is_read_or_refused_and_what_is_read_reads_the_same_again(url: str) -> None:
    found = parse_url(url)

    assert isinstance(found, InvalidUrl) or read_url(str(found)) == found


# What users write -----------------------------------------------------------------------------------------------------

USERS = EVERYWHERE.of_users([ip_network("203.0.112.0/20")], [ip_network("198.51.100.0/24")])
INWARD = (
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "192.0.0.8"),
    *("198.18.0.1", "203.0.113.9", "198.51.100.7", "0.1.2.3"),
    *("[fd12::1]", "[fc00::1]", "[fec0::1]", "[64:ff9b:1::7f00:1]", "[64:ff9b:1:abcd::a00:1]"),
    *("[64:ff9b::10.0.0.1]", "[::10.0.0.1]", "[::ffff:0:10.0.0.1]", "[2002:a00:1::]", "[2001:0:a00:1::]"),
    "[2001:0:34ff:1::f5ff:fffe]",  # Teredo: 10.0.0.1, its bits turned over
)


@pytest.mark.parametrize("host", INWARD)
def test_users_do_not_lead_to_private_addresses_in_any_spelling(host: str) -> None:
    found = parse_url(f"http://{host}:8080", USERS)

    assert isinstance(found, InvalidUrl)
    assert found.fault is UrlFault.FORBIDDEN


@pytest.mark.parametrize(
    "host", ["34.55.100.10", "192.0.2.7", "172.32.0.1", "100.128.0.1", "[2001:db8::1]", "11.0.0.1"]
)
def test_users_lead_to_addresses_outside(host: str) -> None:
    assert isinstance(parse_url(f"http://{host}", USERS), Backend)


def test_users_do_not_lead_to_the_hubs_nodes_by_any_of_their_addresses() -> None:
    nodes = frozenset({ip_address("34.55.100.10"), ip_address("2001:db8::7")})
    users = EVERYWHERE.of_users([], [], nodes)

    for host in ("34.55.100.10", "[2001:db8::7]", "[64:ff9b::34.55.100.10]"):
        found = parse_url(f"http://{host}:10250", users)
        assert isinstance(found, InvalidUrl)
        assert "is an address of one of the hub's nodes" in found.message
    assert check_resolved("node.nip.io", [ip_address("34.55.100.10")], users) is not None
    assert isinstance(parse_url("http://34.55.100.10", replace(users, allowed=("34.55.100.10/32",))), Backend)
    assert isinstance(parse_url("http://34.55.100.11", users), Backend)


def test_a_refusal_says_what_the_address_is_and_which_setting_would_allow_it() -> None:
    found = parse_url("http://203.0.113.9", USERS)
    assert isinstance(found, InvalidUrl)

    assert found.message.startswith(
        "203.0.113.9 is an address of the hub's Services: use another host, or have this one"
    )
    assert isinstance(parse_url("http://203.0.113.9", replace(USERS, allowed=("203.0.113.0/24",))), Backend)


@pytest.mark.parametrize(
    "addresses",
    [
        ("169.254.169.254",),
        ("34.55.100.10", "10.0.0.1"),
        ("2001:db8::1", "::ffff:10.0.0.1"),
        ("::1",),
        tuple(f"34.0.0.{number}" for number in range(65)),
    ],
)
def test_a_name_is_refused_for_any_of_its_addresses(addresses: tuple[str, ...]) -> None:
    refused = check_resolved("169.254.169.254.nip.io", [*map(ip_address, addresses)], USERS)

    assert isinstance(refused, InvalidUrl)
    assert refused.message.startswith("169.254.169.254.nip.io ")


def test_a_name_that_leads_outside_or_that_is_allowed_is_not_refused() -> None:
    outside, inside = ([ip_address(one)] for one in ("34.55.100.10", "10.0.0.1"))

    assert check_resolved("api.example.com", outside, USERS) is None
    assert check_resolved("vllm.example.com", inside, replace(USERS, allowed=(".example.com",))) is None
    assert check_resolved("vllm.example.com", inside, replace(USERS, allowed=("10.0.0.0/24",))) is None
    assert check_resolved("api.example.com", [], USERS) is None
