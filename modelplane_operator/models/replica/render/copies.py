"""Copy Secrets and ConfigMaps that engines reference from the hub to the replica's cluster.

Each replica has its own copies under its own names, with only the keys that it reads. So a copy is deleted with its
replica, and two replicas never write the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from kubeloop.objects import Manifest
from modelplane_operator.api import names
from modelplane_operator.api.model_deployment import DeployedEngine
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.api.pods import KeyRef
from modelplane_operator.owned import on_cluster

MIB: Final = 2**20
MOST: Final = 4 * MIB
"""Size limit in bytes of all copies of one replica: a deployment may have a thousand replicas."""

Use = Literal["Secret", "ConfigMap", "PullSecret"]
"""Kind of reference: a pull secret, or a key of a Secret or ConfigMap."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """A Secret or ConfigMap in the replica's namespace on the hub that the replica needs a copy of."""

    use: Use
    """The kind of use. Pull secrets are copied with all keys and keep their type; others are limited to `keys`."""
    name: str
    """Name of the Secret or ConfigMap on the hub."""
    keys: frozenset[str] = frozenset()
    """Keys that the engines read."""
    required: bool = True
    """True if an engine cannot start without it."""
    needed: frozenset[str] = frozenset()
    """The subset of `keys` that an engine cannot start without."""

    @property
    def kind(self) -> Literal["Secret", "ConfigMap"]:
        """Return the kind of the object."""
        return "ConfigMap" if self.use == "ConfigMap" else "Secret"


def sources(replica: ModelReplica) -> tuple[CopySource, ...]:
    """Return the Secrets and ConfigMaps that the replica's engines reference, each once."""
    return sources_of(replica.spec.engines)


def sources_of(engines: Iterable[PlacedEngine | DeployedEngine]) -> tuple[CopySource, ...]:
    """Return the Secrets and ConfigMaps that engines reference, each once."""
    merged: dict[tuple[Use, str], CopySource] = {}
    for mention in _find_references(engines):
        key = mention.use, mention.name
        existing = merged.setdefault(key, mention)
        merged[key] = replace(
            existing,
            keys=existing.keys | mention.keys,
            required=existing.required or mention.required,
            needed=existing.needed | mention.needed,
        )
    return tuple(merged[key] for key in sorted(merged))


def render_copies(replica: ModelReplica, objects: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Render the copies that the replica needs of the given objects. Other objects are ignored."""
    referenced = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    return tuple(
        _render_copy(replica, source, referenced[source.kind, source.name])
        for source in sources(replica)
        if (source.kind, source.name) in referenced
    )


def describe_excess(replica: ModelReplica, objects: Iterable[Manifest]) -> str:
    """Return by how much the copies exceed the size limit, as a message; "" if they do not."""
    data = [copied.get(field, {}) for copied in render_copies(replica, objects) for field in ("data", "binaryData")]
    size = sum(len(name) + len(value) for values in data for name, value in values.items())
    return f"{size / MIB:.1f} MiB, and {MOST / MIB:g} MiB are allowed" if size > MOST else ""


def _render_copy(replica: ModelReplica, source: CopySource, referenced: Manifest) -> Manifest:
    """Render the copy of one object."""
    is_full = source.use == "PullSecret"
    return {
        "apiVersion": "v1",
        "kind": source.kind,
        "metadata": on_cluster(replica, names.name_of_copy(replica.metadata.name, source.use, source.name)),
        # A Secret's type requires keys that a partial copy may lack, so only a full copy keeps the type.
        **({"type": referenced.get("type", "Opaque") if is_full else "Opaque"} if source.kind == "Secret" else {}),
        **{
            field: {key: value for key, value in referenced[field].items() if is_full or key in source.keys}
            for field in ("data", "binaryData")
            if field in referenced
        },
    }


def _find_references(engines: Iterable[PlacedEngine | DeployedEngine]) -> Iterator[CopySource]:
    """Yield a CopySource for each reference in the pods of engines."""
    pods = (member.template.spec for engine in engines for member in engine.members)
    for pod in filter(None, pods):
        for secret in pod.image_pull_secrets:
            yield CopySource("PullSecret", secret.name)
        for variable in pod.containers[0].env:
            origin = variable.value_from
            if origin and (secret := origin.secret_key_ref):
                yield _with_key(CopySource("Secret", secret.name), secret)
            if origin and (config := origin.config_map_key_ref):
                yield _with_key(CopySource("ConfigMap", config.name), config)


def _with_key(source: CopySource, reference: KeyRef) -> CopySource:
    """Return the source limited to the key of one reference."""
    key, required = frozenset({reference.key}), not reference.optional
    return replace(source, keys=key, required=required, needed=key if required else frozenset())
