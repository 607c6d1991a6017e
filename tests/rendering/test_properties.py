"""What holds for every object that is rendered, whatever it is rendered from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubeloop.objects import Key
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.models.replica.render import (
    EXTENSION_POLICIES,
    LEADER_WORKER_SETS,
    CannotRender,
    Context,
    render_model_replica,
)
from modelplane_operator.routing.endpoint.backend_url import Backend
from modelplane_operator.routing.endpoint.render import rendered_backend
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.service.render import MAX_RULES, render_model_service
from modelplane_operator.routing.service.weights import (
    MAX_BACKENDS,
    MAX_WEIGHT,
    Target,
    select_endpoints,
    weigh_endpoints,
)
from tests.rendering.cases import CASES, render
from tests.support.manifests import Manifest

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
CLUSTER_SCOPED = {"Namespace", "GatewayClass"}

namespaces = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
objects = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", fullmatch=True)
engine_names = st.text(min_size=1, max_size=63)
container = {"name": "engine", "image": "engine:v1"}
devices = [{"name": "gpu", "deviceClassName": "gpu.example.com", "count": 1}]


def member(role: str) -> Manifest:
    return {
        "role": role,
        "nodePoolName": "p",
        "deviceRequests": devices,
        "template": {"spec": {"containers": [container]}},
    }


SHAPES = [[member("Standalone")], [member("Leader"), member("Worker")], [member("Worker"), member("Leader")]]


@st.composite
def replicas(draw: st.DrawFn) -> ModelReplica:
    namespace, deployment = draw(namespaces), draw(objects)
    name = names.replica(namespace, deployment, draw(objects), draw(st.integers(0, 1000)))
    split = draw(st.booleans())
    given_names = draw(st.lists(engine_names, min_size=2 if split else 1, max_size=2 if split else 8, unique=True))
    engines = [
        {"name": engine, "members": draw(st.sampled_from(SHAPES)), **({"phase": phase} if split else {})}
        for engine, phase in zip(given_names, ["Prefill", "Decode"] * 4, strict=False)
    ]
    serving = {"serving": {"mode": "PrefillDecode"}} if split else {}
    cache = {"modelCacheRef": {"name": draw(objects)}} if draw(st.booleans()) else {}
    return ModelReplica.parse(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": "u", "labels": {labels.DEPLOYMENT: deployment}},
            "spec": {"clusterName": "c", "engines": engines, **serving, **cache},
        }
    )


def assert_sound(manifest: Manifest) -> None:
    """Owned, legally named, in a namespace where there are namespaces."""
    metadata = manifest["metadata"]
    known = metadata["labels"]
    assert {labels.OWNER_KIND, labels.OWNER_NAME, labels.OWNER_UID} <= known.keys()
    assert all(LABEL_VALUE.fullmatch(value) for value in known.values())
    limit = metadata["name"].rpartition("-")[0] if manifest["kind"] == "EndpointSlice" else metadata["name"]
    assert LABEL.fullmatch(limit)
    assert ("namespace" in metadata) == (manifest["kind"] not in CLUSTER_SCOPED)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name.removesuffix('.in.yaml')}")
def test_every_case_is_sound(case: Path) -> None:
    for manifest in render(case):
        if "apiVersion" in manifest:
            assert_sound(manifest)


@given(replica=replicas(), pools=st.booleans())
def test_every_replica_is_sound(replica: ModelReplica, *, pools: bool) -> None:
    serves = frozenset({LEADER_WORKER_SETS, *([EXTENSION_POLICIES] if pools else [])})
    found = render_model_replica(replica, Context("n", serves))
    if isinstance(found, CannotRender):
        assert replica.spec.serving
        assert not pools
        return

    for manifest in found:
        assert_sound(manifest)
    identities = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in found]
    assert len(set(identities)) == len(identities)
    services = {name for kind, name in identities if kind == "Service"}
    workloads = {name for kind, name in identities if kind in {"Deployment", "LeaderWorkerSet"}}
    assert not services & {names.workload(replica.metadata.name, engine.name) for engine in replica.spec.engines}
    assert len(workloads) >= len(replica.spec.engines)


@given(
    one=replicas(),
    other=replicas(),
)
def test_two_replicas_share_nothing_but_their_namespace(one: ModelReplica, other: ModelReplica) -> None:
    if one.key == other.key:
        return
    everything = frozenset({EXTENSION_POLICIES, LEADER_WORKER_SETS})

    def identities(replica: ModelReplica) -> set[tuple[str, str, str]]:
        found = render_model_replica(replica, Context("n", everything))
        assert not isinstance(found, CannotRender)
        return {
            (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
            for manifest in found
            if manifest["metadata"]["labels"][labels.OWNER_KIND] != "Namespace"
        }

    assert not identities(one) & identities(other)


hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).filter(lambda address: address.ipv4_mapped is None).map(str),  # those are refused
    st.from_regex(r"[a-z]{1,9}(\.[a-z]{2,9}){1,3}", fullmatch=True),
)
backends = st.builds(Backend, st.sampled_from(["http", "https"]), hosts, st.integers(1, 65535))


def endpoint(namespace: str, name: str, group: str = "") -> ModelEndpoint:
    return ModelEndpoint.parse(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": "u", "labels": {"group": group}},
            "spec": {"url": "read elsewhere"},
        }
    )


@given(namespace=namespaces, name=objects, backend=backends)
def test_every_endpoint_is_sound_and_its_service_says_where_it_leads(
    namespace: str, name: str, backend: Backend
) -> None:
    service, *others = traefik.render_endpoint(endpoint(namespace, name), backend)

    for manifest in (service, *others):
        assert_sound(manifest)
    assert rendered_backend(service) == backend


def service(weights: Sequence[int]) -> ModelService:
    entries = [{"weight": w, "selector": {"matchLabels": {"group": str(g)}}} for g, w in enumerate(weights)]
    return ModelService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": {"endpoints": entries}})


def reached(
    rules: Mapping[str, Manifest], path: str, share: Fraction, detours: int = 0
) -> Iterator[tuple[str, Fraction, int]]:
    """Every backend that a request to a path may end at, how likely that is, and after how many detours."""
    references = rules[path]["backendRefs"]
    whole = sum(reference["weight"] for reference in references)
    for reference in references:
        part = share * Fraction(reference["weight"], whole)
        if reference["name"] == names.service_relay("n", "s"):
            (rewrite,) = reference["filters"]
            yield from reached(rules, rewrite["urlRewrite"]["path"]["replacePrefixMatch"], part, detours + 1)
        else:
            yield reference["name"], part, detours


@settings(deadline=None)  # a thousand endpoints take their time
@given(
    counts=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([16, 17, 100])), min_size=1, max_size=4),
    weight=st.lists(st.integers(1, 100), min_size=4, max_size=4),
)
@example(counts=[1000], weight=[1] * 4)
@example(counts=[0], weight=[1] * 4)
def test_every_service_leads_to_all_of_its_endpoints_by_their_weights(counts: list[int], weight: list[int]) -> None:
    subject = service(weight[: len(counts)])
    endpoints = [endpoint("n", f"e{i}-{g}", str(g)) for g, count in enumerate(counts) for i in range(count)]
    known = {e.key: Target(Backend("http", "10.0.0.1", 80)) for e in endpoints}

    manifests = render_model_service(subject, weigh_endpoints(subject, select_endpoints(subject, endpoints), known))

    for manifest in manifests:
        assert_sound(manifest)
    routes = [manifest["spec"]["rules"] for manifest in manifests if manifest["kind"] == "HTTPRoute"]
    assert all(len(rules) <= MAX_RULES for rules in routes)
    rules = {rule["matches"][0]["path"]["value"]: rule for some in routes for rule in some}
    assert sum(len(some) for some in routes) == len(rules)
    assert all(1 <= len(rule["backendRefs"]) <= MAX_BACKENDS for rule in rules.values())
    assert "/n/s/" in {rule["matches"][0]["path"]["value"] for rule in routes[-1]}, "clients' route is written last"
    found = [*reached(rules, "/n/s/", Fraction(1))]
    live = sum(weight[g] for g, count in enumerate(counts) if count)
    exact = {
        names.endpoint_backend("n", f"e{i}-{g}"): Fraction(weight[g], live * count)
        for g, count in enumerate(counts)
        for i in range(count)
    } or {names.service_route("n", "s"): Fraction(1)}
    assert sorted(name for name, *_ in found) == sorted(exact), "each is met once"
    if math.lcm(*filter(None, counts)) * live <= MAX_WEIGHT:  # else it may need numbers that no rule can hold
        assert {name: part for name, part, _ in found} == exact
        balanced = math.ceil(math.log(len(exact), MAX_BACKENDS)) - 1
        assert sum(part * detours for _, part, detours in found) <= max(balanced, 0)


@given(st.permutations([endpoint("n", name, "0") for name in "abcdef"]))
def test_the_order_of_endpoints_changes_nothing(endpoints: list[ModelEndpoint]) -> None:
    subject = service([1])
    known = {Key("n", name): Target(Backend("http", "10.0.0.1", 80)) for name in "abcdef"}

    found = weigh_endpoints(subject, select_endpoints(subject, endpoints), known)

    assert [share.endpoint.key.name for share in found] == list("abcdef")
