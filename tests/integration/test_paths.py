"""Which paths of an engine clients reach."""

from __future__ import annotations

import pytest

from tests.integration.harness import Stage
from tests.integration.kinds import deployment, service
from tests.integration.paths import MODEL_APIS, OF_WHOEVER_RUNS_IT, reaches

pytestmark = pytest.mark.fleet


async def test_clients_reach_the_apis_of_a_model_and_nothing_else_of_its_engine(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, serving={"paths": ["/my-other-route"]}), service(space))
    await stage.hub.ready("ModelService", "model", space)
    url = f"{stage.gateway}/{space}/model"

    opened = {path: await reaches(stage, url, path) for path in MODEL_APIS}
    closed = {path: await reaches(stage, url, path) for path in OF_WHOEVER_RUNS_IT}
    read = {path: await reaches(stage, url, path, "GET") for path in ("/v1/models", *OF_WHOEVER_RUNS_IT)}

    assert all(opened.values()), opened
    assert not any(closed.values()), closed
    assert read.pop("/v1/models")
    assert not any(read.values()), read
    # The cluster does not allow it, and the deployment says so.
    told = (await stage.hub.get("ModelDeployment", "model", space) or {})["status"]["conditions"]
    assert any(one["reason"] == "LeftOut" and "path /my-other-route (allowedPaths)" in one["message"] for one in told)
    assert not await reaches(stage, url, "/my-other-route")
