"""What of a tenant's objects goes on although they are paused."""

from __future__ import annotations

from typing import Any

from modelplane_operator.controllers.model_endpoint import while_paused


def test_the_endpoint_of_a_replica_goes_on_and_that_of_a_user_does_not() -> None:
    owner = {"kind": "ModelDeployment", "name": "m", "uid": "d", "controller": True}
    users: dict[str, Any] = {"metadata": {"name": "m", "namespace": "n"}}
    assert while_paused({"metadata": {**users["metadata"], "ownerReferences": [owner]}})
    assert not while_paused({"metadata": {**users["metadata"], "ownerReferences": [{**owner, "controller": False}]}})
    assert not while_paused(users)
    assert while_paused({"metadata": {**users["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
