"""Connections follow clusters and kubeconfigs in any order, and nothing unreadable cuts a cluster off."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.informer import Informer
from kubeloop.cache.store import Store
from kubeloop.client.access import Access
from kubeloop.client.kube import Event
from kubeloop.types import CONFIG_MAP, SECRET
from modelplane_operator.clusters.cluster.connections import CLUSTERS, INDEXES, STACKS, Connections

Manifest = dict[str, Any]

KUBECONFIG = """
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
clusters: [{{name: a, cluster: {{server: "https://{server}:6443"}}}}]
users: [{{name: a, user: {{token: {token}}}}}]
"""


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def kubeconfig(server: str, by: str = "hush") -> str:
    return encoded(KUBECONFIG.format(server=server, token=by))


def of_account(until: int) -> str:
    """A service account's token that ends then."""
    claims = json.dumps({"iat": 1, "exp": until, "sub": "system:serviceaccount:ours:operator"}).encode()
    return f"e.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s"


class Hub:
    """The collections of a hub, the fleet that follows from them, and which clusters there was news of."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.versions = itertools.count(1)
        store = Store(lambda: 0.0)

        def opened(name: str, access: Access) -> Connection:
            return Connection(name, access, [], store, jitter=lambda: 0.5)

        self.fleet = Fleet(store, opened)
        self.connections = Connections(self.fleet, self.told.append)
        self.clusters = Informer(CLUSTERS, now=lambda: 0.0, indexes=INDEXES[CLUSTERS])
        self.stacks = Informer(STACKS, now=lambda: 0.0, indexes=INDEXES[STACKS])
        self.secrets = Informer(SECRET, now=lambda: 0.0)
        for informer in (self.clusters, self.stacks, self.secrets, Informer(CONFIG_MAP, now=lambda: 0.0)):
            self.connections.add_event_handlers(informer)

    def see(self, what: Informer, manifest: Manifest, *, gone: bool = False) -> None:
        version = str(next(self.versions))
        metadata = {**manifest["metadata"], "resourceVersion": version, "uid": manifest["metadata"]["name"]}
        what.on_event(Event("DELETED" if gone else "MODIFIED", {**manifest, "metadata": metadata}))

    def cluster(self, name: str, of: str = "s", *, key: str | None = None, gone: bool = False) -> None:
        named = {"name": of, **({"key": key} if key else {})}
        origin = {"source": "Existing", "existing": {"secretRef": named}}
        self.see(self.clusters, {"metadata": {"name": name}, "spec": {"cluster": origin}}, gone=gone)

    def stack(
        self, name: str, of: str, *, namespace: str = "modelplane-system", gone: bool = False, **marks: str
    ) -> None:
        identity = {"type": "GoogleApplicationCredentials", "name": "identity", "key": "key"}
        secrets = [identity, {"type": "Kubeconfig", "name": of, "key": "kubeconfig"}]
        metadata = {"name": name, "namespace": namespace, "labels": {f"modelplane.ai/{k}": v for k, v in marks.items()}}
        self.see(self.stacks, {"metadata": metadata, "spec": {"secrets": secrets}}, gone=gone)

    def secret(self, name: str = "s", *, gone: bool = False, **data: str) -> None:
        metadata = {"name": name, "namespace": "modelplane-system"}
        self.see(self.secrets, {"metadata": metadata, "data": data}, gone=gone)

    def server(self, name: str) -> str | None:
        found = self.fleet.find(name)
        return found._access.server if found else None


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.mark.parametrize("first", ["the cluster", "the Secret"])
def test_a_cluster_is_connected_whichever_is_seen_first(hub: Hub, first: str) -> None:
    steps = [lambda: hub.cluster("a"), lambda: hub.secret(kubeconfig=kubeconfig("one"))]
    for step in steps if first == "the cluster" else reversed(steps):
        step()

    assert hub.server("a") == "https://one:6443"
    assert hub.connections.error_of("a") is None
    assert hub.told[-1] == "a"


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        ({}, "Secret modelplane-system/s has no key kubeconfig: it is empty; put the kubeconfig under it"),
        ({"config": "", "ca": ""}, "Secret modelplane-system/s has no key kubeconfig: it has ca, config; put"),
        ({"kubeconfig": "x"}, "Secret modelplane-system/s: key kubeconfig is not base64"),
        ({"kubeconfig": encoded("a: [")}, "Secret modelplane-system/s, key kubeconfig: the kubeconfig is not YAML"),
        ({"kubeconfig": encoded("hush")}, "Secret modelplane-system/s, key kubeconfig: the kubeconfig is empty"),
    ],
    ids=["nothing in it", "another key", "no base64", "no YAML", "no kubeconfig"],
)
def test_a_kubeconfig_that_cannot_be_read_is_told_and_leaves_the_connection(
    hub: Hub, data: dict[str, str], wrong: str
) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")

    hub.secret(**data)

    assert hub.server("a") == "https://one:6443"
    assert str(hub.connections.error_of("a")).startswith(wrong)
    assert "hush" not in str(hub.connections.error_of("a"))


def test_a_secret_that_goes_leaves_the_connection_and_is_told(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")
    hub.told.clear()

    hub.secret(gone=True)

    assert hub.server("a") == "https://one:6443"
    assert str(hub.connections.error_of("a")) == (
        "Secret modelplane-system/s does not exist: make it, with the kubeconfig under the key kubeconfig"
    )
    assert hub.told == ["a"]


def test_another_kubeconfig_leads_another_way_for_all_clusters_that_name_it(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"), other=kubeconfig("three"))
    for name in "ab":
        hub.cluster(name)
    hub.cluster("c", key="other")

    hub.secret(kubeconfig=kubeconfig("two"), other=kubeconfig("three"))

    assert [hub.server(name) for name in "abc"] == ["https://two:6443", "https://two:6443", "https://three:6443"]


def test_a_cluster_that_is_gone_is_not_connected_any_more(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")
    hub.cluster("b", of="missing")

    for name in "ab":
        hub.cluster(name, gone=True)

    assert [hub.server(name) for name in "ab"] == [None, None]
    assert hub.connections.error_of("b") is None


def test_what_is_no_news_of_the_way_tells_nobody(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")
    hub.told.clear()

    hub.cluster("a")
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.secret("of somebody else", kubeconfig=kubeconfig("two"))

    assert hub.told == []


def test_a_renewed_token_is_news_of_the_way_only_where_it_says_how_long_it_lasts(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")
    hub.told.clear()

    hub.secret(kubeconfig=kubeconfig("one", "another"))
    found = hub.fleet.find("a")
    assert found is not None
    assert (found._access.token, hub.told) == ("another", [])

    for until in (10, 20):
        hub.secret(kubeconfig=kubeconfig("one", of_account(until)))
    assert hub.told == ["a", "a"], "when it is to be renewed is another time"


def test_a_kubeconfig_that_is_there_again_is_told_though_it_leads_the_same_way(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")
    hub.secret(gone=True)
    hub.told.clear()

    hub.secret(kubeconfig=kubeconfig("one"))

    assert (hub.told, hub.connections.error_of("a")) == (["a"], None)


def test_a_cluster_of_a_cloud_is_left_to_its_own_connection(hub: Hub) -> None:
    access = Access("https://cloud")
    hub.fleet.set("g", access)

    hub.see(hub.clusters, {"metadata": {"name": "g"}, "spec": {"cluster": {"source": "GKE", "gke": {"region": "r"}}}})

    assert hub.server("g") == "https://cloud"
    assert hub.connections.error_of("g") is None


@pytest.mark.parametrize("first", ["the stack", "the Secret"])
def test_a_stack_that_no_cluster_has_is_connected_until_it_is_gone(hub: Hub, first: str) -> None:
    steps = [lambda: hub.stack("x", "s"), lambda: hub.secret(kubeconfig=kubeconfig("one"))]
    for step in steps if first == "the stack" else reversed(steps):
        step()
    assert hub.server("modelplane-system/x") == "https://one:6443"
    assert hub.told[-1] == "modelplane-system/x"

    hub.secret(kubeconfig=kubeconfig("two"))
    assert hub.server("modelplane-system/x") == "https://two:6443"

    hub.stack("x", "s", gone=True)
    assert hub.server("modelplane-system/x") is None


def test_a_stack_of_a_cluster_goes_its_way_and_leaves_it_open(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")
    marks = {"owner-kind": "InferenceCluster", "owner-name": "a"}

    hub.stack("a-serving-stack", "s", **marks)
    assert [one.name for one in hub.fleet] == ["a"]

    hub.stack("a-serving-stack", "s", gone=True, **marks)
    assert hub.server("a") == "https://one:6443"


def test_labels_alone_lead_nobody_to_another_cluster(hub: Hub) -> None:
    marks = {"owner-kind": "InferenceCluster", "owner-name": "a"}

    hub.stack("x", "s", namespace="team", **marks)

    assert hub.told == ["team/x"]


def test_a_secret_elsewhere_is_not_read(hub: Hub) -> None:
    """Whoever may make a stack in some namespace must not have a Secret of ours used by naming it."""
    hub.secret(kubeconfig=kubeconfig("one"))

    hub.stack("x", "s", namespace="team")

    assert hub.server("team/x") is None
    assert str(hub.connections.error_of("team/x")) == (
        "Secret team/s is not read: those of kubeconfigs are in modelplane-system"
    )


LAST = (("cluster", "a", "s"), ("cluster", "b", "t"), ("secret", "s", "one"), ("secret", "t", "two"))


@given(
    before=st.lists(
        st.sampled_from(
            [
                ("cluster", "a", "t"),
                ("cluster", "b", "s"),
                ("secret", "s", "old"),
                ("secret", "t", ""),
                ("gone", "s", ""),
            ]
        )
    ),
    last=st.permutations(LAST),
)
def test_the_end_is_the_same_whatever_came_before_and_in_which_order(
    before: list[tuple[str, str, str]], last: list[tuple[str, str, str]]
) -> None:
    hub = Hub()
    for what, name, value in (*before, *last):
        match what:
            case "cluster":
                hub.cluster(name, of=value)
            case "secret":
                hub.secret(name, kubeconfig=kubeconfig(value) if value else "not base64")
            case _:
                hub.secret(name, gone=True)

    assert (hub.server("a"), hub.server("b")) == ("https://one:6443", "https://two:6443")
    assert (hub.connections.error_of("a"), hub.connections.error_of("b")) == (None, None)


class Maker:
    """Credentials that are made, and made anew when they are refused."""

    def __init__(self, hub: Hub, cluster: str) -> None:
        self.hub, self.cluster, self.made = hub, cluster, 1

    def read(self) -> Access:
        return Access("https://cloud", token=f"token-{self.made}")

    def on_unauthorized(self) -> None:
        self.made += 1
        self.hub.connections.follow(self.cluster, self)


def test_who_makes_the_credentials_of_a_cluster_is_told_when_that_refuses_them(hub: Hub) -> None:
    for name in ("g", "h"):
        hub.connections.follow(name, Maker(hub, name))
    before = hub.fleet.find("g")

    hub.connections.on_unauthorized("g")
    hub.connections.on_unauthorized("nobody's")

    tokens = {one.name: one._access.token for one in hub.fleet}
    assert tokens == {"g": "token-2", "h": "token-1"}
    assert hub.fleet.find("g") is before, "on the connection that is there"


def test_a_secret_with_credentials_that_are_refused_stays_the_way(hub: Hub) -> None:
    hub.secret(kubeconfig=kubeconfig("one"))
    hub.cluster("a")

    hub.connections.on_unauthorized("a")

    assert hub.server("a") == "https://one:6443"
