"""The scheduler's fleet, kept up with what the hub's watches and the connections tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import orjson
import structlog
from pydantic import ValidationError

from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import Health
from kubeloop.objects import Key, Manifest, entries
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, ModelReplica
from modelplane_operator.api.inference_cluster import PublishedDevice
from modelplane_operator.scheduling.fleet import FleetModel

MOST_DEVICES = 1024  # kinds of pools; a fleet of a thousand clusters has some dozens

Devices = tuple[PublishedDevice, ...]

log = structlog.get_logger()


@dataclass(slots=True)
class FleetView:
    """Feeds a FleetModel. What cannot be read leaves the model as it was."""

    now: Callable[[], datetime]
    model: FleetModel = field(default_factory=FleetModel)
    clusters: dict[str, InferenceCluster] = field(default_factory=dict[str, InferenceCluster], init=False)
    """Every cluster as it could last be read; those with pools alike share what is known of the devices."""
    _silent_since: dict[str, datetime] = field(default_factory=dict[str, datetime], init=False)
    _devices: dict[bytes, Devices] = field(default_factory=dict[bytes, Devices], init=False)

    def listen(self, informer: Informer) -> None:
        if informer.type == of(InferenceCluster):
            informer.subscribe(self._cluster)
        if informer.type == of(ModelReplica):
            informer.subscribe(self._replica)

    def on_health(self, name: str, health: Health) -> None:
        """A cluster begins or ceases to answer."""
        if health.error is None:
            self._silent_since.pop(name, None)
        else:
            self._silent_since.setdefault(name, self.now())
        if (known := self.clusters.get(name)) is not None:
            self.model.observe_cluster(known, unreachable_since=self._silent_since.get(name))

    def _cluster(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        if new is None:
            self.clusters.pop(key.name, None)
            self._silent_since.pop(key.name, None)
            self.model.forget_cluster(key.name)
            return
        try:
            cluster = InferenceCluster.parse(new)
        except ValidationError as error:
            log.warning("cluster not readable", cluster=key.name, errors=error.error_count())
            return
        cluster = self.clusters[key.name] = self._sharing(cluster, new)
        self.model.observe_cluster(cluster, unreachable_since=self._silent_since.get(key.name))

    def _sharing(self, cluster: InferenceCluster, manifest: Manifest) -> InferenceCluster:
        """The same cluster, with the devices of another one's pool where they are alike: all of a class are."""
        known = entries(manifest, "status", "gpuPools")
        if cluster.status is None or len(known) != len(cluster.status.gpu_pools):
            return cluster
        if len(self._devices) > MOST_DEVICES:
            self._devices.clear()  # what is in use comes back as it is read
        pools = tuple(
            pool.model_copy(update={"devices": self._devices.setdefault(orjson.dumps(one["devices"]), pool.devices)})
            if pool.devices
            else pool
            for pool, one in zip(cluster.status.gpu_pools, known, strict=True)
        )
        return cluster.model_copy(update={"status": cluster.status.model_copy(update={"gpu_pools": pools})})

    def _replica(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        if new is None:
            self.model.forget_replica(key)
            return
        try:
            self.model.observe_replica(ModelReplica.parse(new))
        except ValidationError as error:
            log.warning("replica not readable", replica=str(key), errors=error.error_count())
