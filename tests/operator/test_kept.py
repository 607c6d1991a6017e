"""Plans by what watches keep of children are those by all of them: no field is left out that somebody reads.

Replicas are planned so in all of `test_model_replica.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from modelplane_operator.routing.endpoint import plan as model_endpoint
from modelplane_operator.routing.gateway import envoy_gateway, traefik
from modelplane_operator.routing.gateway.data_plane import DataPlane
from modelplane_operator.routing.service import plan as model_service
from tests.support import endpoints, services
from tests.support.builders import EPOCH
from tests.support.kept import of_hub
from tests.support.manifests import Manifest, change

pytestmark = pytest.mark.usefixtures("well_worded")

NEXT = "http://34.55.100.11/v1"


def situations(children: Sequence[Manifest]) -> Iterator[tuple[Manifest, ...]]:
    """All children, as an API server dates them; without each of them; and with each on its way out."""
    dated = tuple(change(one, "metadata.creationTimestamp", EPOCH.isoformat()) for one in children)
    yield dated
    for place, one in enumerate(dated):
        yield (*dated[:place], *dated[place + 1 :])
        yield (*dated[:place], change(one, "metadata.deletionTimestamp", EPOCH.isoformat()), *dated[place + 1 :])


@pytest.mark.parametrize("plane", [traefik, envoy_gateway], ids=["traefik", "envoy-gateway"])
@pytest.mark.parametrize("url", [endpoints.IP, NEXT, "https://api.together.xyz/", "not-a-url"])
def test_an_endpoint_is_planned_by_what_is_kept(url: str, plane: DataPlane) -> None:
    before = endpoints.settled(endpoints.seen(endpoints.endpoint(endpoints.IP), plane=plane))
    led = model_endpoint.plan(before).status
    assert led is not None
    for terminating in (False, True):
        subject = endpoints.endpoint(url, terminating=terminating).model_copy(update={"status": led})
        for children in situations(before.children):
            seen = replace(before, endpoint=subject, children=children)

            assert model_endpoint.plan(replace(seen, children=of_hub(children))) == model_endpoint.plan(seen)


@pytest.mark.parametrize("aspect", ["True", "False"])
def test_a_service_is_planned_by_what_is_kept(aspect: str) -> None:
    some = [services.endpoint("one"), services.endpoint("two", "b")]
    whole = services.judged(
        services.written(services.seen(services.service((1, "a"), (3, "b")), *some)), Accepted=aspect
    )
    for selected in (some, some[:1], []):
        for children in situations(whole.children):
            seen = replace(whole, endpoints=tuple(selected), children=children)

            assert model_service.plan(replace(seen, children=of_hub(children))) == model_service.plan(seen)
