"""What of a tenant's objects goes on although they are paused, or held."""

from __future__ import annotations

from typing import Any

from modelplane_operator.api import labels
from modelplane_operator.controllers.inference_cluster import is_plain
from modelplane_operator.controllers.model_endpoint import while_paused


def test_the_endpoint_of_a_replica_goes_on_and_that_of_a_user_does_not() -> None:
    owner = {"kind": "ModelDeployment", "name": "m", "uid": "d", "controller": True}
    users: dict[str, Any] = {"metadata": {"name": "m", "namespace": "n"}}
    assert while_paused({"metadata": {**users["metadata"], "ownerReferences": [owner]}})
    assert not while_paused({"metadata": {**users["metadata"], "ownerReferences": [{**owner, "controller": False}]}})
    assert not while_paused(users)
    assert while_paused({"metadata": {**users["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})


def test_an_endpoint_that_somebody_holds_in_deletion_holds_no_http_open() -> None:
    spec = {"url": "http://10.0.0.1/n/m"}
    going = {"name": "m", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert is_plain({"metadata": {"name": "m"}, "spec": spec})
    assert is_plain({"metadata": {**going, "finalizers": ["team/x", labels.FINALIZER]}, "spec": spec})
    assert not is_plain({"metadata": {**going, "finalizers": ["team/x"]}, "spec": spec})
