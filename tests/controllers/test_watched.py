"""What is kept of the hub's objects."""

from __future__ import annotations

import pytest

from modelplane_operator.api import KINDS, ModelEndpoint
from modelplane_operator.api.base import Key
from modelplane_operator.clients.collection import Collection
from modelplane_operator.clients.resources import of
from modelplane_operator.controllers.operator import Kinds, _watched


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)
def test_nothing_is_kept_of_what_is_there_for_crossplane(kind: type[ModelEndpoint]) -> None:
    """Objects composed by hundreds are accepted for every kind, and nobody here reads them."""
    near, _ = _watched(Kinds(controllers=()))
    (watched,) = (one for one in near if one.type == of(kind))
    collection = Collection(of(kind), lambda: 0.0, keeping=watched.keeping)
    composed = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * 200}] * 1000
    metadata = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1"}

    collection.written({"metadata": metadata, "spec": {"crossplane": {"resourceRefs": composed}, "kept": "this"}})

    assert collection.size < 1000
    kept = collection.get(Key("team", "a"))
    assert kept is not None
    assert kept["spec"] == {"kept": "this"}
