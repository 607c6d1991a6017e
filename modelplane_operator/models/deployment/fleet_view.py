"""Keep the scheduler's fleet model up to date from the hub's informers and the cluster connections."""

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

MOST_DEVICES = 1024  # a fleet of a thousand clusters has some dozens
"""Limit of the cache of published devices, in distinct pool contents."""

Devices = tuple[PublishedDevice, ...]
"""Devices of a pool."""

log = structlog.get_logger()


@dataclass(slots=True)
class FleetView:
    """Feeds a FleetModel from informers. An object that cannot be parsed leaves the model unchanged."""

    now: Callable[[], datetime]
    """Clock, which tests replace."""
    model: FleetModel = field(default_factory=FleetModel)
    """The scheduler's model of the fleet."""
    clusters: dict[str, InferenceCluster] = field(default_factory=dict[str, InferenceCluster], init=False)
    """Last readable InferenceCluster of each name; pools with equal devices share one tuple."""
    _silent_since: dict[str, datetime] = field(default_factory=dict[str, datetime], init=False)
    """Time since which each cluster has not answered."""
    _devices: dict[bytes, Devices] = field(default_factory=dict[bytes, Devices], init=False)
    """Parsed devices by their serialized form, shared between clusters."""

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the informers of InferenceClusters and ModelReplicas."""
        if informer.type == of(InferenceCluster):
            informer.subscribe(self._on_cluster)
        if informer.type == of(ModelReplica):
            informer.subscribe(self._on_replica)

    def on_health(self, name: str, health: Health) -> None:
        """Record that a cluster began or ceased to answer."""
        if health.error is None:
            self._silent_since.pop(name, None)
        else:
            self._silent_since.setdefault(name, self.now())
        if (cluster := self.clusters.get(name)) is not None:
            self.model.observe_cluster(cluster, unreachable_since=self._silent_since.get(name))

    def _on_cluster(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Update the model after an InferenceCluster changed or was deleted."""
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
        cluster = self.clusters[key.name] = self._share_devices(cluster, new)
        self.model.observe_cluster(cluster, unreachable_since=self._silent_since.get(key.name))

    def _share_devices(self, cluster: InferenceCluster, manifest: Manifest) -> InferenceCluster:
        """Return the cluster with devices that it shares with equal pools of other clusters, to save memory."""
        pool_statuses = entries(manifest, "status", "gpuPools")
        if cluster.status is None or len(pool_statuses) != len(cluster.status.gpu_pools):
            return cluster
        if len(self._devices) > MOST_DEVICES:
            self._devices.clear()  # entries in use come back as clusters are read again
        pools = tuple(
            pool.model_copy(
                update={"devices": self._devices.setdefault(orjson.dumps(pool_status["devices"]), pool.devices)}
            )
            if pool.devices
            else pool
            for pool, pool_status in zip(cluster.status.gpu_pools, pool_statuses, strict=True)
        )
        return cluster.model_copy(update={"status": cluster.status.model_copy(update={"gpu_pools": pools})})

    def _on_replica(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Update the model after a ModelReplica changed or was deleted."""
        if new is None:
            self.model.forget_replica(key)
            return
        try:
            self.model.observe_replica(ModelReplica.parse(new))
        except ValidationError as error:
            log.warning("replica not readable", replica=str(key), errors=error.error_count())
