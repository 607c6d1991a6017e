"""Keep the fleet's connections in line with the kubeconfigs that InferenceClusters and ServingStacks reference.

Only stacks without an InferenceCluster have a connection of their own. A missing or invalid kubeconfig does not close
an existing connection. The result does not depend on the order in which objects are observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog

from kubeloop.cache.fleet import Fleet
from kubeloop.cache.informer import Informer
from kubeloop.client.errors import origin
from kubeloop.client.kubeconfigs import KubeconfigSource, SecretKubeconfig
from kubeloop.errors import ClientError, Defect
from kubeloop.loop import Indexes
from kubeloop.objects import Key, Manifest, entries, key_of, labels_of, section
from kubeloop.repeats import Repeats
from kubeloop.resource import of
from kubeloop.types import SECRET, ResourceType
from modelplane_operator.api import InferenceCluster, ServingStack, labels, names

CLUSTERS, STACKS = of(InferenceCluster), of(ServingStack)

log = structlog.get_logger()


class Way(NamedTuple):
    """The connection that an object asks for."""

    name: str
    """The name of the connection."""
    secret: Key | None
    """The Secret with the kubeconfig; None if the connection does not come from a kubeconfig."""
    key: str = ""
    """The key within the Secret."""


def _get_cluster_connection(cluster: Manifest) -> Way:
    """Return the connection of an InferenceCluster."""
    name, origin = cluster["metadata"]["name"], section(cluster, "spec", "cluster")
    if origin.get("source") != "Existing" or "cloud" in section(origin, "existing"):
        return Way(name, None)
    reference = section(origin, "existing", "secretRef")
    return Way(name, Key(names.SYSTEM_NAMESPACE, reference.get("name", "")), reference.get("key", "kubeconfig"))


def cluster_of(stack: Manifest) -> str:
    """Return the name of the connection to a stack's cluster: its InferenceCluster's, or one of its own."""
    key, stack_labels = key_of(stack), labels_of(stack)
    if key.namespace == names.SYSTEM_NAMESPACE and stack_labels.get(labels.OWNER_KIND) == "InferenceCluster":
        return stack_labels.get(labels.OWNER_NAME, "")  # in other namespaces users may set these labels
    return str(key)


def _get_stack_connection(stack: Manifest) -> Way | None:
    """Return the connection of a standalone stack; None for an InferenceCluster's, which uses the cluster's."""
    name = str(key_of(stack))
    if cluster_of(stack) != name:
        return None
    reference = next(secret for secret in entries(stack, "spec", "secrets") if secret["type"] == "Kubeconfig")
    return Way(name, Key(key_of(stack).namespace, reference["name"]), reference["key"])


def _get_secret_content(secret: Manifest) -> tuple[object, bool]:
    """Return the parts of a Secret that clusters depend on."""
    return secret.get("data"), "deletionTimestamp" in secret["metadata"]


WayOf = Callable[[Manifest], Way | None]
WAYS: Mapping[ResourceType, WayOf] = {CLUSTERS: _get_cluster_connection, STACKS: _get_stack_connection}
"""Functions that return the connection of an object, by the types that reference kubeconfigs."""


def _get_secret_names(way_of: WayOf, manifest: Manifest) -> tuple[str, ...]:
    """Return the index key of an object: the Secret with its kubeconfig, if there is one."""
    way = way_of(manifest)
    return (way.secret.name,) if way and way.secret else ()


INDEXES: Indexes = {kind: {"kubeconfig": partial(_get_secret_names, way_of)} for kind, way_of in WAYS.items()}
"""Indexes by the name of the Secret, to find the objects that a changed Secret concerns."""


@dataclass(slots=True)
class Connections:
    """The connections of clusters and the errors in their kubeconfigs.

    `changed` is called with the cluster when its connection or the error in its kubeconfig has changed.
    """

    fleet: Fleet
    changed: Callable[[str], None]
    """Function that is called with the name of a cluster whose connection or error has changed."""
    _informers: list[Informer] = field(default_factory=list[Informer], init=False)
    """Informers of the types that reference kubeconfigs."""
    _secrets: Informer | None = field(default=None, init=False)
    """The informer of the hub's Secrets."""
    _sources: dict[str, KubeconfigSource] = field(default_factory=dict[str, KubeconfigSource], init=False)
    """The kubeconfig source by cluster."""
    _wrong: dict[str, ClientError] = field(default_factory=dict[str, ClientError], init=False)
    """The error in the kubeconfig by cluster."""
    _repeats: Repeats = field(default_factory=Repeats, init=False)

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to an informer of the hub if its type holds or references kubeconfigs."""
        if way_of := WAYS.get(informer.type):
            self._informers.append(informer)
            informer.subscribe(partial(self._on_reference, way_of))
        elif informer.type == SECRET:
            self._secrets = informer
            informer.subscribe(self._on_secret)

    def error_of(self, cluster: str) -> ClientError | None:
        """Return the error in a cluster's kubeconfig. The cluster may be connected nevertheless."""
        return self._wrong.get(cluster)

    def follow(self, cluster: str, source: KubeconfigSource) -> None:
        """Connect a cluster by a source, and notify the source when its credentials are rejected."""
        self._sources[cluster] = source
        old_error, is_changed = self._wrong.pop(cluster, None), False
        try:
            is_changed = self.fleet.set(cluster, source.read())
        except ClientError as error:
            self._wrong[cluster] = error
        except Exception as error:  # noqa: BLE001 - a Secret has no condition: whoever names it tells what we fail on
            self._wrong[cluster] = self._log_defect(source, error)
        self._notify(cluster, old_error, is_changed=is_changed)

    def on_failure(self, cluster: str, source: KubeconfigSource, error: Exception) -> None:
        """Record that no credentials could be created for a cluster. It may be connected nevertheless."""
        old_error = self._wrong.get(cluster)
        self._wrong[cluster] = error if isinstance(error, ClientError) else self._log_defect(source, error)
        self._notify(cluster, old_error)

    def _notify(self, cluster: str, old_error: ClientError | None, *, is_changed: bool = False) -> None:
        """Call `changed` if the connection was replaced or its error has changed."""
        if is_changed or repr(old_error) != repr(self.error_of(cluster)):
            self.changed(cluster)

    def _log_defect(self, source: KubeconfigSource, error: Exception) -> Defect:
        """Log an unexpected failure, rarely if it repeats, and return it as an error."""
        fields = {"error": type(error).__name__, "at": origin(error)}
        if so_far := self._repeats.worth((str(source), *fields.values())):
            log.error("kubeconfig failed", source=str(source), so_far=so_far, **fields)
        return Defect(f"{source}: {Defect.by(error)}")

    def unfollow(self, cluster: str) -> None:
        """Remove the connection of a deleted cluster."""
        self._sources.pop(cluster, None)
        self._wrong.pop(cluster, None)
        self.fleet.remove(cluster)
        self.changed(cluster)

    def on_unauthorized(self, cluster: str) -> None:
        """Notify the source that a cluster has rejected its credentials."""
        if source := self._sources.get(cluster):
            source.on_unauthorized()

    def _on_reference(self, way_of: WayOf, _: Key, old: Manifest | None, new: Manifest | None) -> None:
        """Update or remove the connection of an object that references a kubeconfig."""
        old_way, new_way = (way_of(manifest) if manifest else None for manifest in (old, new))
        if old_way == new_way:
            return
        if new_way is not None:
            self._update(new_way)
        elif old_way is not None:
            self._wrong.pop(old_way.name, None)
            self._sources.pop(old_way.name, None)
            self.fleet.remove(old_way.name)

    def _on_secret(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        """Update the connections of all objects that reference a changed Secret."""
        if old and new and _get_secret_content(old) == _get_secret_content(new):
            return
        for informer in self._informers:
            for manifest in informer.by("kubeconfig", key.name):
                if way := WAYS[informer.type](manifest):
                    self._update(way)

    def _update(self, way: Way) -> None:
        """Open, replace or keep a connection by the current kubeconfig."""
        if way.secret is None:
            self._wrong.pop(way.name, None)
        else:
            self.follow(way.name, SecretKubeconfig(way.secret, way.key, self._get_secret))

    def _get_secret(self, key: Key) -> Manifest | None:
        """Return a Secret of the hub; None before its informer exists."""
        return self._secrets.get(key) if self._secrets else None
