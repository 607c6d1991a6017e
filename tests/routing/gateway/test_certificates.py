"""When the certificates of gateways are made anew, and whom gateways trust meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeloop.client.certificates import secret_data
from kubeloop.plan import Issue
from modelplane_operator.api import labels, names
from modelplane_operator.routing.gateway.certificates import (
    ATTEMPTS,
    AUTHORITY_VALID,
    RENEWED,
    REPLACED,
    SIGNS,
    TRUSTED_FOR,
    UNUSABLE,
    VALID,
    authorities,
    is_current,
    leaf,
    new_authority,
    spare,
    trust,
)

pytestmark = pytest.mark.usefixtures("well_worded")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
METADATA = {"namespace": names.SYSTEM_NAMESPACE, "labels": {}}
Manifest = dict[str, Any]


def made(step: Issue) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": step.metadata,
        "data": secret_data(step.certificate, None),
    }


def first(now: datetime = NOW) -> Manifest:
    step = new_authority((), now, METADATA)
    assert step is not None
    return made(step)


def gateway(secrets: list[Manifest], now: datetime) -> Issue:
    trusted = trust(authorities(secrets), now)
    assert trusted is not None
    return leaf({**METADATA, "name": "it"}, names.server_name("west"), "server", trusted, now, "west")


def test_without_an_authority_nobody_is_trusted() -> None:
    assert trust((), NOW) is None


def test_the_first_authority_signs_at_once() -> None:
    trusted = trust(authorities([first()]), NOW)
    assert trusted is not None
    assert trusted.signer.name == names.gateway_authority(1)


def test_a_certificate_is_made_once_and_renewed_well_before_it_ends() -> None:
    secrets = [first()]
    stored = made(gateway(secrets, NOW))
    assert is_current(stored, gateway(secrets, NOW + DAY), NOW + DAY)
    assert not is_current(stored, gateway(secrets, NOW + RENEWED), NOW + RENEWED)
    assert timedelta(days=10) <= VALID - RENEWED
    assert not is_current(None, gateway(secrets, NOW), NOW)


def test_annotations_that_somebody_spoiled_have_it_made_anew() -> None:
    secrets = [first()]
    stored = made(gateway(secrets, NOW))
    for spoiled in ({}, {**stored["metadata"]["annotations"], labels.RENEW_AFTER: "tomorrow"}):
        live = {**stored, "metadata": {**stored["metadata"], "annotations": spoiled}}
        assert not is_current(live, gateway(secrets, NOW), NOW)


def test_no_two_sides_ever_distrust_each_other() -> None:
    """Years of days on which each side has learnt of the latest changes, or not for most of the time that it may."""
    secrets: list[Manifest] = []
    sides: dict[str, tuple[Issue, datetime] | None] = {"prompt": None, "late": None}
    signed_by: dict[str, str] = {}
    for number in range(3 * 365):
        now = NOW + number * DAY
        if step := new_authority(secrets, now, METADATA):
            secrets.append(made(step))
        gone = {one.secret.name for one in spare(authorities(secrets), now)}
        secrets = [one for one in secrets if one["metadata"]["name"] not in gone]
        for side, shown in sides.items():
            wanted = gateway(secrets, now)
            late = side == "late" and number % 6  # it is out of reach for five days of six
            if shown is None or not (late or is_current(made(shown[0]), wanted, now)):
                sides[side] = (wanted, now)
        for one in filter(None, sides.values()):
            assert one[0].certificate.until > now
            signer = next(secret for secret in secrets if secret["metadata"]["name"] == one[0].certificate.signer.name)  # type: ignore[union-attr]
            certificate = authorities([signer])[0].certificate
            for other in filter(None, sides.values()):
                assert certificate in other[0].certificate.trusted
            signed_by[signer["metadata"]["name"]] = certificate
    assert len(signed_by) >= 3
    assert len(authorities(secrets)) <= 2


def test_an_authority_outlives_all_that_it_signs() -> None:
    assert REPLACED + SIGNS + VALID + TRUSTED_FOR <= AUTHORITY_VALID


def test_numbers_are_not_used_twice_even_if_one_cannot_be_read() -> None:
    broken = {**first(), "data": {}}
    step = new_authority([broken], NOW, METADATA)
    assert step is not None
    assert step.key.name == names.gateway_authority(2)


def test_a_client_that_changes_each_authority_has_no_endless_number_of_them_made() -> None:
    stamp = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    broken = [
        {"metadata": {**METADATA, "name": names.gateway_authority(number), "creationTimestamp": stamp}, "data": {}}
        for number in range(1, ATTEMPTS + 1)
    ]
    assert new_authority(broken[:-1], NOW, METADATA) is not None, "a person has done it"
    assert new_authority(broken, NOW + timedelta(seconds=1), METADATA) is None
    assert new_authority(broken, NOW + UNUSABLE, METADATA) is not None


def test_no_plan_holds_a_key() -> None:
    secrets = [first()]
    step = gateway(secrets, NOW)
    assert "PRIVATE KEY" not in repr(step)
    assert str(step) == "issue Secret modelplane-system/it on cluster west"
