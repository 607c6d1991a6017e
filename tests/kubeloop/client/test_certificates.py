"""Certificates that the operator makes: whom they convince, asked of a real TLS on both sides."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kubeloop.certificate import Certificate, Usage
from kubeloop.client.certificates import UnusableAuthorityError, find_fault, is_authority, secret_data
from kubeloop.objects import Key
from modelplane_operator.api import names

NOW = datetime.now(UTC).replace(microsecond=0)
SIGNER = Key(names.SYSTEM_NAMESPACE, "signer")
WEST = names.server_name("west")


def authority(name: str = "ours") -> dict[str, object]:
    wanted = Certificate(name, "authority", NOW - timedelta(hours=1), NOW + timedelta(days=1))
    metadata = {"namespace": SIGNER.namespace, "name": SIGNER.name}
    return {"kind": "Secret", "metadata": metadata, "data": secret_data(wanted, None)}


def issued(
    name: str, usage: Usage, signer: dict[str, object], *, until: datetime = NOW + timedelta(days=1)
) -> Mapping[str, str]:
    return secret_data(Certificate(name, usage, NOW - timedelta(hours=1), until, SIGNER), signer)


def pem(secret: Mapping[str, str] | object, key: str) -> str:
    assert isinstance(secret, Mapping)
    return base64.b64decode(secret[key]).decode()


def shake(
    folder: Path,
    trusted: dict[str, object],
    server: Mapping[str, str],
    client: Mapping[str, str] | None,
    name: str = WEST,
) -> str:
    """How a handshake goes between two that trust the same authority: empty when it succeeds."""
    sides: list[ssl.SSLContext] = []
    for protocol, shown in ((ssl.PROTOCOL_TLS_SERVER, server), (ssl.PROTOCOL_TLS_CLIENT, client)):
        context = ssl.SSLContext(protocol)
        context.load_verify_locations(cadata=pem(trusted["data"], "tls.crt"))
        if shown is not None:
            path = folder / "shown.pem"
            path.write_text(pem(shown, "tls.crt") + pem(shown, "tls.key"))
            context.load_cert_chain(path)
        context.verify_mode = ssl.CERT_REQUIRED
        sides.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        sides[0].wrap_bio(to_server, to_client, server_side=True),
        sides[1].wrap_bio(to_client, to_server, server_hostname=name),
    ]
    done = [False, False]
    for _ in range(10):
        for number, end in enumerate(ends):
            if not done[number]:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLError as error:
                    return error.reason
                done[number] = True
    return "" if all(done) else "NOT_FINISHED"


def test_both_gateways_convince_each_other(tmp_path: Path) -> None:
    ours = authority()
    server, client = issued(WEST, "server", ours), issued(names.HUB_NAME, "client", ours)
    assert not shake(tmp_path, ours, server, client)


def test_a_gateway_answers_nobody_without_a_certificate(tmp_path: Path) -> None:
    ours = authority()
    assert shake(tmp_path, ours, issued(WEST, "server", ours), None) == "PEER_DID_NOT_RETURN_A_CERTIFICATE"


def test_a_gateway_does_not_answer_another_hub(tmp_path: Path) -> None:
    ours, theirs = authority(), authority()  # of the same name
    client = issued(names.HUB_NAME, "client", theirs)
    assert shake(tmp_path, ours, issued(WEST, "server", ours), client) in {"CERTIFICATE_VERIFY_FAILED", "BAD_SIGNATURE"}


def test_a_cluster_cannot_pass_for_the_hub_at_another_one(tmp_path: Path) -> None:
    ours = authority()
    stolen = issued(names.server_name("east"), "server", ours)
    assert shake(tmp_path, ours, issued(WEST, "server", ours), stolen) == "CERTIFICATE_VERIFY_FAILED"


def test_a_cluster_cannot_pass_for_another_one(tmp_path: Path) -> None:
    ours = authority()
    client = issued(names.HUB_NAME, "client", ours)
    assert (
        shake(tmp_path, ours, issued(names.server_name("east"), "server", ours), client) == "CERTIFICATE_VERIFY_FAILED"
    )


def test_the_hub_cannot_pass_for_a_cluster(tmp_path: Path) -> None:
    ours = authority()
    client = issued(WEST, "client", ours)
    assert shake(tmp_path, ours, client, client) == "CERTIFICATE_VERIFY_FAILED"


def test_a_certificate_ends(tmp_path: Path) -> None:
    ours = authority()
    old = issued(WEST, "server", ours, until=NOW - timedelta(seconds=1))
    assert shake(tmp_path, ours, old, issued(names.HUB_NAME, "client", ours)) == "CERTIFICATE_VERIFY_FAILED"


def test_a_certificate_signs_no_other(tmp_path: Path) -> None:
    ours = authority()
    east = issued(names.server_name("east"), "server", ours)
    forger = {**ours, "data": east}
    assert shake(tmp_path, ours, issued(WEST, "server", forger), issued(names.HUB_NAME, "client", ours))


@pytest.mark.parametrize("content", [{}, {"tls.key": "c2VjcmV0", "tls.crt": "c2VjcmV0"}])
def test_what_is_no_authority_is_told_without_its_content(content: dict[str, str]) -> None:
    broken: dict[str, object] = {**authority(), "data": content}
    with pytest.raises(
        UnusableAuthorityError, match="Secret modelplane-system/signer holds no certificate authority"
    ) as told:
        issued(WEST, "server", broken)
    assert "secret" not in str(told.value)
    assert told.value.__cause__ is None


WANTED = Certificate(WEST, "server", NOW, NOW + timedelta(days=1), SIGNER, "trusted")


def held(content: Mapping[str, str], **more: str) -> dict[str, object]:
    return {"kind": "Secret", "data": {**content, "ca.crt": base64.b64encode(b"trusted").decode(), **more}}


def test_the_content_of_a_secret_is_held_against_the_authority() -> None:
    ours, theirs = authority(), authority()
    good = issued(WEST, "server", ours)
    assert not find_fault(held(good), WANTED, ours, NOW)
    of_two = {**good, "tls.key": issued(WEST, "server", ours)["tls.key"]}
    for spoiled, why in (
        (held(of_two), "do not belong together"),
        (held({**good, "tls.crt": "bm8="}), "cannot be read"),
        (held({}), "cannot be read"),
        (held(issued(WEST, "server", theirs)), "is not signed by the authority in Secret modelplane-system/signer"),
        (held(issued(names.server_name("east"), "server", ours)), f"does not prove the name {WEST}"),
        (held(good, **{"ca.crt": base64.b64encode(b"theirs").decode()}), "its ca.crt"),
    ):
        assert why in find_fault(spoiled, WANTED, ours, NOW)
    assert "expired" in find_fault(held(good), WANTED, ours, NOW + timedelta(days=2))


def test_an_authority_needs_the_key_of_its_certificate() -> None:
    ours, theirs = authority(), authority()
    assert is_authority(ours)
    for key in ("tls.key", "tls.crt"):
        assert isinstance(ours["data"], Mapping)
        assert isinstance(theirs["data"], Mapping)
        assert not is_authority({**ours, "data": {**ours["data"], key: theirs["data"][key]}})
