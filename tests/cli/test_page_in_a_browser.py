"""The page in a real browser: what it shows, with what it is used, and what it does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelReplica
from scripts.browser import Tab, browser
from tests.support.builders import EPOCH, cluster, deployment
from tests.support.manifests import change
from tests.support.observed import placed
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
    going = change(placed(MODEL, *FLEET)[0], "metadata.deletionTimestamp", EPOCH.isoformat())
    served.put(ModelReplica.parse(going))
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


CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
