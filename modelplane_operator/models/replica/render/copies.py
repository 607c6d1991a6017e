"""Secrets and ConfigMaps that engines name: they live beside the deployment, and are needed where the pods are.

A replica has copies of its own, under names of their own, with no more than the keys that it reads. So a copy goes with
its replica, and two replicas never write the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from kubeloop.objects import Manifest
from modelplane_operator.api import names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.pods import KeyRef
from modelplane_operator.owned import on_cluster

MIB: Final = 2**20
MOST: Final = 4 * MIB
"""Of all copies of one replica: a thousand replicas of a deployment each bring theirs."""

Use = Literal["Secret", "ConfigMap", "PullSecret"]


@dataclass(frozen=True, slots=True)
class CopySource:
    """An object on the hub, in the replica's namespace, that the replica needs a copy of."""

    use: Use
    """A registry's credentials are copied whole and keep their type; of the others, keys are copied."""
    name: str
    keys: frozenset[str] = frozenset()
    required: bool = True
    """Whether an engine waits for it."""
    needed: frozenset[str] = frozenset()
    """Of the keys, those that an engine waits for."""

    @property
    def kind(self) -> Literal["Secret", "ConfigMap"]:
        return "ConfigMap" if self.use == "ConfigMap" else "Secret"


def sources(replica: ModelReplica) -> tuple[CopySource, ...]:
    """What the replica's engines name, each once."""
    found: dict[tuple[Use, str], CopySource] = {}
    for mention in _mentions(replica):
        key = mention.use, mention.name
        seen = found.setdefault(key, mention)
        found[key] = replace(
            seen,
            keys=seen.keys | mention.keys,
            required=seen.required or mention.required,
            needed=seen.needed | mention.needed,
        )
    return tuple(found[key] for key in sorted(found))


def render_copies(replica: ModelReplica, found: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Copies of those objects of the hub that the replica needs; the others are passed over."""
    referenced = {(item["kind"], item["metadata"]["name"]): item for item in found}
    return tuple(
        _copy(replica, source, referenced[source.kind, source.name])
        for source in sources(replica)
        if (source.kind, source.name) in referenced
    )


def too_much(replica: ModelReplica, found: Iterable[Manifest]) -> str:
    """What of those copies is more than a replica may bring to its cluster; empty when it is not."""
    data = [made.get(field, {}) for made in render_copies(replica, found) for field in ("data", "binaryData")]
    size = sum(len(name) + len(value) for one in data for name, value in one.items())
    return f"{size / MIB:.1f} MiB, and {MOST / MIB:g} MiB are allowed" if size > MOST else ""


def _copy(replica: ModelReplica, source: CopySource, referenced: Manifest) -> Manifest:
    whole = source.use == "PullSecret"
    return {
        "apiVersion": "v1",
        "kind": source.kind,
        "metadata": on_cluster(replica, names.copied(replica.metadata.name, source.use, source.name)),
        # A type demands keys that may not be among those we copy, so only the whole keeps it.
        **({"type": referenced.get("type", "Opaque") if whole else "Opaque"} if source.kind == "Secret" else {}),
        **{
            field: {key: value for key, value in referenced[field].items() if whole or key in source.keys}
            for field in ("data", "binaryData")
            if field in referenced
        },
    }


def _mentions(replica: ModelReplica) -> Iterator[CopySource]:
    pods = (member.template.spec for engine in replica.spec.engines for member in engine.members)
    for pod in filter(None, pods):
        for secret in pod.image_pull_secrets:
            yield CopySource("PullSecret", secret.name)
        for variable in pod.containers[0].env:
            origin = variable.value_from
            if origin and (secret := origin.secret_key_ref):
                yield _key(CopySource("Secret", secret.name), secret)
            if origin and (config := origin.config_map_key_ref):
                yield _key(CopySource("ConfigMap", config.name), config)


def _key(source: CopySource, reference: KeyRef) -> CopySource:
    key, required = frozenset({reference.key}), not reference.optional
    return replace(source, keys=key, required=required, needed=key if required else frozenset())
