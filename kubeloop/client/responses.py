"""Checks of responses: anything that no API server sends is an offence, or an attempt to mislead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

from kubeloop.client.limits import KIB
from kubeloop.client.wire import Wire
from kubeloop.errors import ServerFault
from kubeloop.objects import Key, Manifest, section
from kubeloop.types import ResourceType

CONTINUE_SIZE = 16 * KIB  # limit of a continue token, which has a few hundred bytes
_VERSION: Final = re.compile("[0-9]{1,20}")


class Answers:
    """Typed access to parts of responses. Every method raises Misbehaving for a value of another type."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def object(self, value: Any, operation: str, what: str = "the answer") -> Manifest:
        """Return the value as an object."""
        if not isinstance(value, dict):
            raise self._wire.misbehaves(operation, f"{what} is no object")
        return cast(Manifest, value)

    def objects(self, value: Any, operation: str, what: str) -> Sequence[Manifest]:
        """Return the value as a list of objects."""
        if not isinstance(value, list):
            raise self._wire.misbehaves(operation, f"{what} are no list")
        return [self.object(item, operation, f"one of {what}") for item in cast(Sequence[Any], value)]

    def items(self, answer: Manifest, operation: str) -> Sequence[Manifest]:
        """Return the items of a list, each with metadata."""
        item_list = self.objects(answer.get("items") or [], operation, "the items")
        for item in item_list:
            self.object(item.get("metadata"), operation, "the metadata of an item")
        return item_list

    def place(self, answer: Manifest, operation: str) -> tuple[str, str]:
        """Return the resourceVersion of a list or object, and the continue token of a list."""
        metadata = self.object(answer.get("metadata"), operation, "the metadata")
        version, token = metadata.get("resourceVersion"), metadata.get("continue") or ""
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise self._wire.misbehaves(operation, "the answer has no resourceVersion, or one that is no number")
        if not isinstance(token, str) or len(token) > CONTINUE_SIZE:
            message = f"the answer's continuation is not a string of up to {CONTINUE_SIZE} bytes"
            raise self._wire.misbehaves(operation, message)
        return version, token


def check_response(answer: Manifest, kind: ResourceType, key: Key, *, operation: str) -> Manifest:
    """Return a response that must be about this object; raises ServerFault if it is about another."""
    metadata = answer.get("metadata")
    identity = cast(Manifest, metadata) if isinstance(metadata, dict) else {}
    actual = (answer.get("apiVersion"), answer.get("kind"), identity.get("namespace") or "", identity.get("name"))
    if actual != (kind.api_version, kind.kind, key.namespace if kind.namespaced else "", key.name):
        raise ServerFault(f"{operation}: the answer is another object")
    return answer


def check_namespace(item: Manifest, kind: ResourceType, namespace: str, *, operation: str) -> None:
    """Raise ServerFault if an object in the list of a namespace is in another namespace."""
    if kind.namespaced and namespace and section(item, "metadata").get("namespace") != namespace:
        raise ServerFault(f"{operation}: an object of another namespace is among those of {namespace}")
