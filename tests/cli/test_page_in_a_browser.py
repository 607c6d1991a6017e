"""The page in a real browser: what it shows, with what it is used, and what it does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kubeloop.words import sentence
from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelReplica
from modelplane_operator.models.deployment.render import render_replica
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.prose import summary
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule
from scripts.browser import Tab, browser
from tests.support.builders import EPOCH, cluster, deployment, engine, gpu, memory, pool, request, taint
from tests.support.golden import Golden
from tests.support.manifests import ROOT, change
from tests.support.observed import placed, stored
from tests.support.page import Page, page

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
NO = {"type": "Ready", "status": "False", "reason": "ModelStarting", "lastTransitionTime": EPOCH.isoformat()}
MODEL = deployment(replicas=3)
ILL = ModelDeployment.parse(
    {**MODEL.to_manifest(), "status": {"conditions": [{**NO, "message": HOSTILE}]}},
)
FLEET = (cluster("berlin", nodes=1), cluster("oslo", nodes=1))
REPLICAS = tuple(map(ModelReplica.parse, placed(MODEL, *FLEET)))
HERE = "document.body.innerText"


@pytest.fixture(scope="module")
async def tab() -> AsyncIterator[Tab]:
    async with browser() as found:
        yield found


@pytest.fixture
async def served(tab: Tab) -> AsyncIterator[Page]:
    tab.complaints.clear()
    async with page([*FLEET, ILL, *REPLICAS]) as found:
        yield found
        assert tab.complaints == []
        await tab.open("about:blank")  # which would complain of a server that ends


async def opened(tab: Tab, served: Page, view: str, **how: Any) -> None:
    """One of its views, by whoever has the token."""
    await tab.open(served.address, **how)
    await tab.run(f"location.hash = '#/{view}'")


async def test_clusters_models_and_moves_are_shown_and_change_by_themselves(tab: Tab, served: Page) -> None:
    await tab.open(served.address)
    await tab.until(f"{HERE}.includes('2 of 2 clusters Ready, 2 of 2 nodes used, 2 replicas')")
    assert "token" not in await tab.run("location.href")
    served.put(cluster("rome", nodes=7))
    await tab.until(f"{HERE}.includes('3 of 3 clusters Ready, 2 of 9 nodes used')")
    await tab.run("location.hash = '#/moves'")
    await tab.until(f"{HERE}.includes('Nothing is under way')")
    terminating = change(placed(MODEL, *FLEET)[0], "metadata.deletionTimestamp", EPOCH.isoformat())
    served.put(ModelReplica.parse(terminating))
    await tab.until(f"{HERE}.includes('1 replica on the way') && {HERE}.includes('ending')")


async def test_a_model_and_its_cluster_are_opened_by_keyboard_and_left_again(tab: Tab, served: Page) -> None:
    await opened(tab, served, "models")
    await tab.until("document.querySelectorAll('tbody tr').length == 1")
    for key in ("/", "x", "x"):
        await tab.key(key)
    await tab.until("document.querySelectorAll('tbody tr').length == 0")
    for key in ("Escape", "Escape", "j", "Enter"):
        await tab.key(key)
    await tab.until(f"{HERE}.includes('{MODEL.key} is not Ready') && {HERE}.includes('What would help')")
    assert "2 of 3 replicas placed on 2 clusters" in await tab.run(HERE)
    assert await tab.run("document.activeElement.id") == "main"
    await tab.key("j")
    await tab.key("Enter")
    await tab.until(f"{HERE}.includes('berlin is Ready') || {HERE}.includes('oslo is Ready')")
    await tab.key("Escape")
    await tab.until("location.hash == '#/clusters'")


async def test_what_others_write_is_text(tab: Tab, served: Page) -> None:
    await opened(tab, served, "models")
    await tab.until(f"{HERE}.includes('<img src=x onerror')")
    assert await tab.run("document.title") == "Modelplane"
    assert await tab.run("document.querySelectorAll('main img, main script').length") == 0
    refused = "try { document.body.innerHTML = 'x'; 'done' } catch (error) { error.name }"
    assert await tab.run(refused) == "TypeError"
    tab.complaints.clear()  # of that try


@pytest.mark.parametrize("dark", [False, True])
async def test_text_can_be_read_in_light_and_dark_and_fits_a_phone(tab: Tab, served: Page, *, dark: bool) -> None:
    await opened(tab, served, "models", width=390, height=844, dark=dark)
    await tab.until("document.querySelectorAll('tbody tr').length == 1")
    assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
    contrasts = await tab.run(CONTRASTS)
    assert len(contrasts) > 5
    assert min(contrasts) >= 4.5


async def test_a_thousand_clusters_are_a_map_and_the_ill_ones_come_first(tab: Tab) -> None:
    many = [cluster(f"c-{number:04}", nodes=2) for number in range(999)]
    ill = InferenceCluster.parse(change(cluster("z-ill").to_manifest(), "status.conditions", [NO]))
    async with page([*many, ill]) as served:
        await tab.open(served.address)
        await tab.until("document.querySelectorAll('.map a').length == 1000")
        assert await tab.run("document.querySelector('tbody a').textContent") == "z-ill"
        assert await tab.run("document.querySelectorAll('tbody tr').length") == 200
        await tab.run("document.querySelector('main button').click()")
        await tab.until("document.querySelectorAll('tbody tr').length == 1000")


async def test_without_the_token_it_says_what_to_open(tab: Tab, served: Page) -> None:
    await tab.open(f"{served.url}/#token=wrong")
    await tab.until(f"{HERE}.includes('open the address that `modelplane page` has printed')")
    tab.complaints.clear()  # the browser tells of answers that are refusals


async def test_the_pictures_of_the_docs_can_be_taken(tab: Tab, golden: Golden) -> None:
    """With --golden-update they are written to docs/images."""
    async with page(A_FLEET) as served:
        pictures: dict[str, bytes] = {}
        await opened(tab, served, "clusters", height=720)
        await tab.until("document.querySelectorAll('tbody tr').length == 40")
        pictures["page-clusters"] = await tab.picture()
        await opened(tab, served, "models/ml-team/qwen3-8b", height=560, dark=True)
        await tab.until(f"{HERE}.includes('What would help')")
        pictures["page-model"] = await tab.picture()
        await opened(tab, served, "models", width=390, height=700)
        await tab.until("document.querySelectorAll('tbody tr').length == 3")
        pictures["page-phone"] = await tab.picture()
        await tab.open("about:blank")
    for name, content in pictures.items():
        assert content.startswith(b"\x89PNG")
        if golden.update:
            (ROOT / f"docs/images/{name}.png").write_bytes(content)


def _a_fleet() -> Iterator[Any]:
    """Forty clusters, on which some models run."""
    names = [f"{town}-{number}" for town in ("berlin", "iowa", "oslo", "tokyo") for number in range(1, 11)]
    sizes = {name: 2 + len(name) * (at % 5) % 7 for at, name in enumerate(names)}
    fleet = [
        cluster(name, pool("dgx", gpu("80Gi", 8), nodes=size), pool("l4", gpu("23Gi", 1), nodes=6), region=name[:-2])
        for name, size in sizes.items()
    ]
    fleet[12] = cluster("iowa-3", ready=False, message="its API server has not answered for 4 minutes")
    fleet[25] = cluster("oslo-6", pool("dgx", gpu("80Gi", 8), nodes=4), taints=[taint("maintenance")])
    yield from fleet
    big, small = request(memory("70Gi"), count=8), request(memory("20Gi"))
    wanted = (("llama-70b", big, 30, None), ("qwen3-8b", big, 60, {"region": "oslo"}), ("embedder", small, 60, None))
    known = FleetModel()
    for one in fleet:
        known.observe_cluster(one)
    for name, asked, replicas, where in wanted:
        model = deployment(engine(asked), name=name, uid=name, replicas=replicas, labels=where)
        decision = schedule(placement_request(model), known, now=EPOCH)
        for placement in decision.new:
            one = ModelReplica.parse(stored(render_replica(model, placement, None)))
            known.observe_replica(one)
            yield one
        good, since = not decision.missing, (datetime.now(UTC) - timedelta(minutes=12)).isoformat()
        said = {
            "type": "Ready",
            "status": str(good),
            "reason": "Available" if good else "InsufficientCapacity",
            "message": sentence(summary(decision)),
            "lastTransitionTime": since,
        }
        yield ModelDeployment.parse({**model.to_manifest(), "status": {"conditions": [said]}})


A_FLEET = (*_a_fleet(),)
CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
