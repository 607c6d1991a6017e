"""Random lives of a small fleet: what users and clouds do to it, and what must hold after each decision.

A life is drawn from a number, so that a failure is repeated by it. What is checked is written without the planner:
nodes are counted in the clusters and replicas as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from kubeloop.objects import Key, annotations_of, is_terminating
from kubeloop.plan import Create, Delete, Replace
from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, labels
from modelplane_operator.scheduling.requirement import NoCache
from tests.models.deployment.simulation import REPLICAS, Hub
from tests.support import builders as b

Manifest = dict[str, Any]

STEP = timedelta(seconds=30)
BAD = "vllm:bad"
"""An image that never answers."""
SIZES = {"80Gi": 80, "141Gi": 141, "200Gi": 200}
STORED = Replace | Create | Delete


@dataclass
class Wanted:
    """What the users of a deployment have written."""

    replicas: int = 1
    image: str = "vllm:1"
    size: str = "80Gi"
    copies: int = 1
    region: str | None = None
    surge: int = 1
    unavailable: int = 0
    failover: bool = False
    cached: bool = False
    paused: bool = False

    def render(self, name: str, before: ModelDeployment | None = None) -> ModelDeployment:
        """The deployment as it is stored, with the status that it has."""
        engine = b.engine(b.request(b.memory(self.size)), copies=self.copies)
        engine["members"][0]["template"] = {"spec": {"containers": [{"name": "engine", "image": self.image}]}}
        made = b.deployment(
            engine,
            name=name,
            uid=f"uid-{name}",
            replicas=self.replicas,
            labels={"region": self.region} if self.region else None,
            cache="qwen" if self.cached else None,
            failover={"after": "2m", "maxShare": "50%"} if self.failover else None,
        ).to_manifest()
        made["spec"]["template"]["spec"]["rollout"] = {"maxSurge": self.surge, "maxUnavailable": self.unavailable}
        if self.paused:
            made["metadata"]["annotations"] = {labels.PAUSED: "true"}
        return ModelDeployment.parse(made).model_copy(update={"status": before.status if before else None})


@dataclass
class Site:
    """What is known of a cluster."""

    pools: dict[str, tuple[str, int]]
    """The memory of the GPUs and the number of nodes of each pool."""
    region: str = "eu"
    tainted: bool = False
    terminating: bool = False
    forced: bool = False
    ready: bool = True

    def render(self, name: str) -> InferenceCluster:
        pools = [b.pool(pool, b.gpu(size), nodes=nodes) for pool, (size, nodes) in self.pools.items()]
        taints = [b.taint("maintenance", effect="NoExecute")] if self.tainted else []
        return b.cluster(
            name,
            *pools,
            taints=taints,
            terminating=self.terminating,
            forced=self.forced,
            ready=self.ready,
            region=self.region,
        )


@dataclass
class Life:
    """One life: a fleet, some deployments, and what has happened so far."""

    random: Random
    sites: dict[str, Site] = field(default_factory=dict[str, Site])
    wanted: dict[str, Wanted] = field(default_factory=dict[str, Wanted])
    hubs: dict[str, Hub] = field(default_factory=dict[str, Hub])
    clusters: dict[str, InferenceCluster] = field(default_factory=dict[str, InferenceCluster])
    events: list[str] = field(default_factory=list[str])
    deleted_by_hand: set[Key] = field(default_factory=set[Key])
    frozen: dict[str, tuple[set[str], int]] = field(default_factory=dict[str, tuple[set[str], int]])
    """The images of each paused deployment when it was paused, and its copies."""

    @classmethod
    def begin(cls, number: int) -> Life:
        """A fleet with one or two deployments that have come to rest."""
        random = Random(number)  # noqa: S311
        life = cls(random)
        for name in "abc"[: random.randint(1, 3)]:
            life.sites[name] = life._draw_site()
        life.show()
        for name in ("one", "two")[: random.choice((1, 1, 2))]:
            surge, unavailable = random.choice(((1, 0), (1, 0), (1, 0), (2, 0), (0, 1), (1, 1)))
            wanted = life.wanted[name] = Wanted(
                replicas=random.choice((1, 1, 2, 2, 3)),
                size=random.choice(("80Gi", "80Gi", "141Gi")),
                copies=random.choice((1, 1, 1, 2)),
                surge=surge,
                unavailable=unavailable,
                failover=random.random() < 0.2,
                cached=random.random() < 0.2,
            )
            life.hubs[name] = Hub(
                wanted.render(name),
                life.clusters,
                starting=random.randint(1, 3),
                ending=random.choice((0, 0, 1)),
                step=STEP,
                broken=frozenset({BAD}),
                cache=b.model_cache() if wanted.cached else NoCache.NOT_READ,
            )
        hubs = list(life.hubs.values())
        for hub in hubs:
            hub.silent = hubs[0].silent
            hub.neighbours = [other for other in hubs if other is not hub]
        life.events.append(f"begin: {life.sites} {life.wanted}")
        life.rest()
        return life

    def live(self, events: int) -> None:
        """So many things happen, some of them at the same moment; then the fleet comes to rest."""
        for _ in range(events):
            for _ in range(self.random.choice((1, 2))):
                self._happen()
            self.show()
            for _ in range(self.random.choice((1, 1, 2, 4, 8))):
                self.pass_time()
        self.rest()
        self._check_rest()

    # What happens ------------------------------------------------------------------------------------------------

    def _draw_site(self) -> Site:
        pools = {
            pool: (self.random.choice(tuple(SIZES)), self.random.randint(0, 3))
            for pool in ("p", "q")[: self.random.choice((1, 1, 2))]
        }
        return Site(pools, self.random.choice(("eu", "eu", "us")))

    def _happen(self) -> None:
        rare = (self._pools, self._join, self._restart, self._cache, self._vanish)
        often = (self._edit, self._edit, self._edit, self._state, self._silence, self._delete_replica, self._pause)
        what: Callable[[], str | None] = self.random.choice((*rare, *often, *often))
        self.events.append(f"{what.__name__}: {what()}")

    def _edit(self) -> str:
        """One or two fields of a deployment change in one apply."""
        name = self.random.choice(tuple(self.wanted))
        wanted, changes = self.wanted[name], {}
        for _ in range(self.random.choice((1, 2))):
            match self.random.choice(("image", "image", "replicas", "replicas", "size", "copies", "region")):
                case "image":
                    changes["image"] = self.random.choice(("vllm:1", "vllm:2", "vllm:3", "vllm:4", BAD))
                case "replicas":
                    changes["replicas"] = self.random.choice((0, 1, 1, 2, 2, 3, 3, 4))
                case "size":
                    changes["size"] = self.random.choice(tuple(SIZES))
                case "copies":
                    changes["copies"] = self.random.choice((1, 1, 2))
                case _:
                    changes["region"] = self.random.choice((None, "eu", "us"))
        for key, value in changes.items():
            setattr(wanted, key, value)
        return f"{name} {changes}"

    def _pools(self) -> str:
        """Nodes come or go, or the class of a pool is edited."""
        name = self.random.choice(tuple(self.sites))
        self.sites[name].pools = self._draw_site().pools | (
            self.sites[name].pools if self.random.random() < 0.5 else {}
        )
        return f"{name} {self.sites[name].pools}"

    def _join(self) -> str | None:
        name = next((name for name in "abcdef" if name not in self.sites), None)
        if name is None:
            return None
        self.sites[name] = self._draw_site()
        return f"{name} {self.sites[name]}"

    def _state(self) -> str:
        """A cluster is tainted or not, deleted, drained by force, or loses its readiness."""
        name = self.random.choice(tuple(self.sites))
        site = self.sites[name]
        match self.random.choice(("taint", "taint", "untaint", "delete", "force", "ready")):
            case "taint":
                site.tainted = True
            case "untaint":
                site.tainted, site.forced = False, False
            case "delete":
                site.terminating = True
            case "force":
                site.forced = True
            case _:
                site.ready = not site.ready
        return f"{name} {site}"

    def _silence(self) -> str:
        """A cluster stops to answer, or answers again."""
        name = self.random.choice(tuple(self.sites))
        hub = next(iter(self.hubs.values()))
        if hub.silent.pop(name, None) is None:
            hub.silent[name] = hub.now
        return f"{name} {'silent' if name in hub.silent else 'back'}"

    def _vanish(self) -> str | None:
        """The object of a cluster is gone, as its finalizers were removed."""
        name = self.random.choice(tuple(self.sites))
        if len(self.sites) == 1:
            return None
        del self.sites[name]
        next(iter(self.hubs.values())).silent.pop(name, None)
        return name

    def _delete_replica(self) -> str | None:
        """Somebody deletes a replica."""
        name = self.random.choice(tuple(self.hubs))
        hub = self.hubs[name]
        live = sorted(key for key, manifest in hub.replicas.items() if not is_terminating(manifest))
        if not live:
            return None
        key = self.random.choice(live)
        self.deleted_by_hand.add(key)
        hub.end(key)
        return str(key)

    def _pause(self) -> str:
        """A deployment is paused, or goes on."""
        name = self.random.choice(tuple(self.wanted))
        wanted = self.wanted[name]
        wanted.paused = not wanted.paused
        return f"{name} {wanted.paused}"

    def _restart(self) -> str:
        """The operator dies between two steps of a plan, and another one starts."""
        hub = self.random.choice(tuple(self.hubs.values()))
        after = self.random.randint(0, 3)
        hub.decide(dies_after=after)
        for other in self.hubs.values():
            other.restart()
        return f"after {after} steps"

    def _cache(self) -> str:
        """The weights reach other clusters, or the cache is to be on others."""
        staged = [name for name in self.sites if self.random.random() < 0.5]
        region = self.random.choice((None, None, "eu", "us"))
        cache = b.model_cache(**({"region": region} if region else {})).to_manifest()
        cache["status"] = {"clusters": [{"name": name, "volume": "modelcache"} for name in staged]}
        gone = self.random.random() < 0.2
        for name, hub in self.hubs.items():
            if self.wanted[name].cached:
                hub.cache = NoCache.NOT_FOUND if gone else ModelCache.parse(cache)
        return "gone" if gone else f"{staged} {region}"

    def show(self) -> None:
        """Store what users and clouds have changed."""
        for name in self.clusters.keys() - self.sites.keys():
            del self.clusters[name]
        for name, site in self.sites.items():
            self.clusters[name] = site.render(name)
        for name, hub in self.hubs.items():
            wanted = self.wanted[name]
            hub.deployment = wanted.render(name, hub.deployment)
            if not wanted.paused:
                self.frozen.pop(name, None)
            elif name not in self.frozen:
                engines = [manifest["spec"]["engines"][0] for manifest in hub.replicas.values()]
                copies = {engine["copies"] for engine in engines}
                self.frozen[name] = set(map(image_of, hub.replicas.values())), copies.pop() if len(copies) == 1 else 0

    # What the operator does --------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """Every deployment is decided until nothing is left to do at this moment, and a while passes."""
        for name in sorted(self.hubs, key=lambda _: self.random.random()):
            wanted = self.wanted[name]
            for _ in range(
                max(5, 2 * (wanted.replicas + wanted.surge) + 1)
            ):  # each replica goes, and another one comes
                if not self._decide(name):
                    break
            else:
                raise AssertionError("deciding again and again changes it")
        for hub in self.hubs.values():
            hub.tick()
            assert not hub.dropped - self.deleted_by_hand, "requests reach a replica that does not answer"
        self.deleted_by_hand &= {key for hub in self.hubs.values() for key in hub.routes}

    def rest(self) -> None:
        """Time passes until nothing moves."""
        made = {name: hub.created for name, hub in self.hubs.items()}
        for _ in range(150):
            self.pass_time()
            for name, hub in self.hubs.items():
                wanted = self.wanted[name]
                assert hub.created - made[name] <= 3 * (wanted.replicas + wanted.surge), "replicas come and go"
            if all(hub.quiet for hub in self.hubs.values()):
                return
        raise AssertionError("it does not come to rest")

    def _decide(self, name: str) -> bool:
        """Decide once, and check what it does. True if a replica was created, changed or deleted."""
        hub = self.hubs[name]
        before = dict(hub.replicas)
        serving = {
            key
            for key, replica in hub.observed.live_replicas.items()
            if replica.serving and replica.draining_since is None
        }
        place = self._find_place(name)
        decided = hub.decide()
        hub.deployment = hub.deployment.model_copy(update={"status": decided.status})
        stored = [step for step in decided.steps if isinstance(step, STORED) and _is_replica(step)]
        place = place and self._find_place(name)  # free before the plan, and left by it
        disturbed = {key for key in serving if not _is_as_it_was(before[key], hub.replicas.get(key))}
        created = {key for key in hub.replicas if key not in before}
        self._check_rotation(name, serving, disturbed, created, place)
        self._check_shapes(name, before, place)
        return bool(stored)

    # What must hold ----------------------------------------------------------------------------------------------

    def _check_rotation(
        self, name: str, serving: set[Key], disturbed: set[Key], created: set[Key], place: str | None
    ) -> None:
        """No edit takes a replica out of rotation that is needed, as long as another may come to its place.

        Where replicas are missing, the free nodes may be those that the changed ones get.
        """
        hub, wanted = self.hubs[name], self.wanted[name]
        remaining = len(serving - disturbed)
        edited = [key for key in disturbed if not self._is_left(hub.replicas[key])]
        if not edited or remaining >= wanted.replicas - wanted.unavailable:
            return
        live = {key for key, manifest in hub.replicas.items() if not is_terminating(manifest)}
        coming = [
            key
            for key in live - serving
            if self._is_usable(hub.replicas[key]["spec"]["clusterName"])
            and image_of(hub.replicas[key]) != BAD
            and not hub.waits_for_nodes(key)
        ]
        possible = wanted.replicas <= len(live) < wanted.replicas + wanted.surge and place
        names = sorted(key.name for key in edited)
        assert not created, f"{names} leave rotation while others are created"
        assert not coming, f"{names} leave rotation while {sorted(key.name for key in coming)} start"
        assert not possible, f"{names} leave rotation though {possible} has room"

    def _check_shapes(self, name: str, before: Mapping[Key, Manifest], place: str | None) -> None:
        """A paused deployment keeps its shape, and a replica that is to leave its cluster is not changed there."""
        hub, wanted = self.hubs[name], self.wanted[name]
        for key, manifest in hub.replicas.items():
            old = before.get(key)
            if old is not None and old["spec"] == manifest["spec"]:
                continue
            if wanted.paused:
                assert old is None, f"{key.name} is changed during a pause"
                images, copies = self.frozen[name]
                if wanted.copies != copies:
                    continue  # it takes other nodes, and is as the deployment is now
                assert image_of(manifest) in images, f"{key.name} gets {image_of(manifest)} during a pause: {images}"
            site = self.sites.get(manifest["spec"]["clusterName"])
            if old is not None and site is not None and (site.tainted or site.terminating):
                # Others that are to leave their clusters as well have not come to its place.
                staying = sum(
                    other_site is not None and not (other_site.tainted or other_site.terminating)
                    for other in hub.replicas.values()
                    if not is_terminating(other)
                    for other_site in [self.sites.get(other["spec"]["clusterName"])]
                )
                assert staying < wanted.replicas, f"{key.name} is changed though another has come to its place"
                # Others that need other nodes may get the free ones.
                grows = any(_hardware(other) != (wanted.copies, b.memory(wanted.size)) for other in before.values())
                assert grows or not place, f"{key.name} is changed on a cluster that it is to leave: {place} has room"

    def _check_rest(self) -> None:
        """A rollout ends when the fleet can hold it."""
        for name, hub in self.hubs.items():
            wanted, live = self.wanted[name], list(hub.replicas.values())
            live = [manifest for manifest in live if not is_terminating(manifest)]
            if wanted.paused or wanted.image == BAD or (wanted.cached and not isinstance(hub.cache, ModelCache)):
                continue
            place = self._find_place(name)
            assert len(live) >= wanted.replicas or not place, f"{name} lacks replicas, and {place} has room"
            # A replica without nodes or on a lost cluster holds the others up, as long as it has no other place.
            waiting = [manifest for manifest in live if not hub.answers(_key(manifest))]
            if waiting and not (place and wanted.surge):
                continue
            # One that is to leave its cluster waits for those on a lost cluster, which only a failover ends.
            leaving = [manifest for manifest in live if self._is_left(manifest)] if waiting else []
            old = [manifest for manifest in live if self._is_outdated(name, manifest) and manifest not in leaving]
            assert not old, f"{[one['metadata']['name'] for one in old]} stay in an old shape; free place: {place}"
            if not waiting:
                assert len(live) <= wanted.replicas, f"{name} has {len(live)} replicas"

    def _is_outdated(self, name: str, manifest: Manifest) -> bool:
        """Whether a replica has an old shape, though it could have the new one where it is or elsewhere."""
        wanted, engine = self.wanted[name], manifest["spec"]["engines"][0]
        cluster, pool = manifest["spec"]["clusterName"], engine["members"][0]["nodePoolName"]
        site = self.sites[cluster]
        if image_of(manifest) == wanted.image and _hardware(manifest) == (wanted.copies, b.memory(wanted.size)):
            return False
        size, nodes = site.pools.get(pool, ("80Gi", 0))
        free = nodes - self._booked[cluster, pool] + engine["copies"]
        fits_here = SIZES[size] >= SIZES[wanted.size] and free >= wanted.copies and self._booked[cluster, pool] <= nodes
        return bool(fits_here or self._find_place(name))

    @property
    def _booked(self) -> Mapping[tuple[str, str], int]:
        return next(iter(self.hubs.values())).booked

    def _is_usable(self, name: str) -> bool:
        """Whether a cluster takes and runs replicas."""
        site = self.sites.get(name)
        silent = next(iter(self.hubs.values())).silent
        return site is not None and site.ready and not (site.tainted or site.terminating or name in silent)

    def _is_left(self, manifest: Manifest) -> bool:
        """Whether replicas are to leave the cluster of this one, or it does not work."""
        return not self._is_usable(manifest["spec"]["clusterName"])

    def _find_place(self, name: str) -> str | None:
        """A pool with free nodes for one more replica in the present shape."""
        wanted, booked, cache = self.wanted[name], self._booked, self.hubs[name].cache
        if wanted.cached and not isinstance(cache, ModelCache):
            return None
        regions = {wanted.region} if wanted.region else set[str]()
        if isinstance(cache, ModelCache) and cache.spec.cluster_selector and wanted.cached:
            regions |= set(cache.spec.cluster_selector.match_labels.values())
        for cluster, site in self.sites.items():
            if not self._is_usable(cluster) or not regions <= {site.region}:
                continue
            for pool, (size, nodes) in site.pools.items():
                if SIZES[size] >= SIZES[wanted.size] and nodes - booked[cluster, pool] >= wanted.copies:
                    return f"{cluster}/{pool}"
        return None


def play(number: int, *, events: int = 6) -> None:
    """Live the life with this number."""
    life: Life | None = None
    try:
        life = Life.begin(number)
        life.live(events)
    except AssertionError as error:
        error.add_note("\n".join([f"life {number}:", *(life.events if life else ())]))
        raise


def image_of(manifest: Manifest) -> str:
    """The image of a replica's engine."""
    return manifest["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"][0]["image"]


def _hardware(manifest: Manifest) -> tuple[int, str]:
    """The copies of a replica's engine and its selector."""
    engine = manifest["spec"]["engines"][0]
    return engine["copies"], engine["members"][0]["deviceRequests"][0]["selectors"][0]["cel"]


def _key(manifest: Manifest) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _is_replica(step: STORED) -> bool:
    return step.type == REPLICAS if isinstance(step, Delete) else step.manifest["kind"] == "ModelReplica"


def _is_as_it_was(before: Manifest, after: Manifest | None) -> bool:
    """Whether a replica goes on serving as it did."""
    return (
        after is not None
        and not is_terminating(after)
        and after["spec"] == before["spec"]
        and labels.DRAINING_SINCE not in annotations_of(after)
    )
