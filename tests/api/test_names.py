"""Derived names are legal wherever they are used, and different objects have different names."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modelplane_operator.api import names
from modelplane_operator.api.bounds import SUBDOMAIN

# A Service may be named like this everywhere; Kubernetes itself also takes a leading digit, in some versions.
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
objects = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", fullmatch=True)  # names of objects may have dots
engines = st.text(min_size=1, max_size=63)  # the reference takes any text, so do we
short = st.text("ab-", min_size=1, max_size=4).filter(lambda name: name.strip("-") == name)


def a_replica(namespace: str, deployment: str, cluster: str, index: int) -> str:
    return names.replica(namespace, deployment, cluster, index)


IDENTITIES: dict[str, tuple[Callable[..., str], tuple[st.SearchStrategy[object], ...]]] = {
    "replica": (names.replica, (labels, objects, objects, st.integers(0, 1000))),
    "picker": (
        lambda *identity: names.picker(a_replica(*identity)),
        (labels, objects, objects, st.integers(0, 1000)),
    ),
    "endpoint backend": (names.endpoint_backend, (labels, objects)),
    "service route": (names.service_route, (labels, objects)),
    "remote namespace": (names.remote_namespace, (labels,)),
    "workload": (names.workload, (labels, engines)),
    "claim template": (
        names.claim_template,
        (labels, engines, st.sampled_from(["standalone", "leader", "worker"]), st.text()),
    ),
    "copied": (names.name_of_copy, (labels, st.sampled_from(["Secret", "ConfigMap", "PullSecret"]), objects)),
    "cache volume": (names.cache_volume, (labels, objects)),
}
EVERY = pytest.mark.parametrize("named", IDENTITIES)


@EVERY
@given(data=st.data())
def test_name_is_legal_for_every_object(named: str, data: st.DataObject) -> None:
    name, identity = IDENTITIES[named]

    assert SERVICE.fullmatch(name(*data.draw(st.tuples(*identity))))


@EVERY
@given(data=st.data())
def test_different_objects_have_different_names(named: str, data: st.DataObject) -> None:
    name, identity = IDENTITIES[named]
    one, other = data.draw(st.tuples(*identity)), data.draw(st.tuples(*identity))
    assume(one != other)

    assert name(*one) != name(*other)


@given(cluster=objects.filter(re.compile(SUBDOMAIN).fullmatch))
def test_whatever_a_cluster_may_be_called_gives_names_that_objects_can_have(cluster: str) -> None:
    for name in (names.provider_config(cluster), names.serving_stack(cluster)):
        assert re.fullmatch(SUBDOMAIN[1:-1], name)
        assert len(name) <= names.LABEL


@given(one=st.tuples(short, short), other=st.tuples(short, short))
def test_a_cut_elsewhere_is_a_different_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assume(one != other)

    assert names.cache_volume(*one) != names.cache_volume(*other)
    assert names.replica(*one, "c", 0) != names.replica(*other, "c", 0)


def test_a_thousand_replicas_have_a_thousand_names() -> None:
    found = {names.replica("ml-team", "qwen", f"cluster-{index % 200}", index // 200) for index in range(1000)}

    assert len(found) == 1000


@given(replica=labels, engine=engines)
def test_a_gang_leaves_room_for_what_its_controllers_append(replica: str, engine: str) -> None:
    assert len(f"{names.workload(replica, engine)}-63-0123456789") <= names.LABEL


@given(replica=labels, engine=engines)
def test_a_workload_never_has_the_name_of_its_replica(replica: str, engine: str) -> None:
    assert names.workload(replica, engine) != replica


@given(namespace=labels)
def test_no_tenant_lands_in_our_own_namespace(namespace: str) -> None:
    assert names.remote_namespace(namespace) != names.SYSTEM_NAMESPACE


def test_a_tenant_called_system_has_a_namespace_of_its_own() -> None:
    assert names.remote_namespace("system").startswith("modelplane-system-")
    assert names.remote_namespace("ml-team") == "modelplane-ml-team"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (names.provider_config("test-cluster"), "test-cluster-cluster-kubeconfig-d0f89"),
        (names.provider_config("local"), "local-cluster-kubeconfig-e9dae"),
        (names.serving_stack("test-cluster"), "test-cluster-serving-stack-fd00b"),
        (names.serving_stack("local"), "local-serving-stack-d4206"),
    ],
)
def test_names_that_administrators_look_up_are_those_of_the_reference(name: str, expected: str) -> None:
    assert name == expected


@pytest.mark.parametrize(
    ("deployment", "shown"),
    [
        ("qwen3-8b", "qwen3-8b"),
        ("3b-chat", "m-3b-chat"),  # a Service's name begins with a letter
        ("qwen2.5", "qwen2-5"),
        ("a" * 63, "a" * 47),
        ("a" * 46 + "-bbbbbb", "a" * 46),
        ("a.b.c", "a-b-c"),
        ("1a", "m-1a"),
    ],
)
def test_a_replica_shows_which_deployment_it_belongs_to(deployment: str, shown: str) -> None:
    assert re.fullmatch(rf"{shown}-[0-9a-f]{{10}}", names.replica("ml-team", deployment, "berlin", 0))
