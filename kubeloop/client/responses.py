"""What an API server may answer: whatever else one says shows that it is none, or is made to mislead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

from kubeloop.client.limits import KIB
from kubeloop.client.wire import Wire
from kubeloop.errors import ServerFault
from kubeloop.objects import Key, Manifest, section
from kubeloop.types import ResourceType

CONTINUE_SIZE = 16 * KIB  # of the token that leads to the next page: a few hundred bytes
_VERSION: Final = re.compile("[0-9]{1,20}")


class Answers:
    """The parts of an API server's answers, each of the type that it has to be; raises Misbehaving for others."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def object(self, value: Any, asked: str, what: str = "the answer") -> Manifest:
        if not isinstance(value, dict):
            raise self._wire.misbehaves(asked, f"{what} is no object")
        return cast(Manifest, value)

    def objects(self, value: Any, asked: str, what: str) -> Sequence[Manifest]:
        if not isinstance(value, list):
            raise self._wire.misbehaves(asked, f"{what} are no list")
        return [self.object(one, asked, f"one of {what}") for one in cast(Sequence[Any], value)]

    def items(self, answer: Manifest, asked: str) -> Sequence[Manifest]:
        found = self.objects(answer.get("items") or [], asked, "the items")
        for item in found:
            self.object(item.get("metadata"), asked, "the metadata of an item")
        return found

    def place(self, answer: Manifest, asked: str) -> tuple[str, str]:
        """The resourceVersion of a list or an object, and what leads to a list's next page."""
        metadata = self.object(answer.get("metadata"), asked, "the metadata")
        version, token = metadata.get("resourceVersion"), metadata.get("continue") or ""
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise self._wire.misbehaves(asked, "the answer has no resourceVersion, or one that is no number")
        if not isinstance(token, str) or len(token) > CONTINUE_SIZE:
            words = f"the answer's continuation is not a string of up to {CONTINUE_SIZE} bytes"
            raise self._wire.misbehaves(asked, words)
        return version, token


def checked(answer: Manifest, kind: ResourceType, key: Key, *, asked: str) -> Manifest:
    """An answer about that very object; raises ServerFault when it is another, which nobody may take for it."""
    metadata = answer.get("metadata")
    named = cast(Manifest, metadata) if isinstance(metadata, dict) else {}
    found = (answer.get("apiVersion"), answer.get("kind"), named.get("namespace") or "", named.get("name"))
    if found != (kind.api_version, kind.kind, key.namespace if kind.namespaced else "", key.name):
        raise ServerFault(f"{asked}: the answer is another object")
    return answer


def check_namespace(item: Manifest, kind: ResourceType, namespace: str, *, asked: str) -> None:
    """Raise ServerFault when one of the objects of a namespace is of another."""
    if kind.namespaced and namespace and section(item, "metadata").get("namespace") != namespace:
        raise ServerFault(f"{asked}: an object of another namespace is among those of {namespace}")
