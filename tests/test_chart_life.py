"""The chart's life on a hub, by the real Helm: installed, upgraded from the first one there was, rolled back, ended.

Pods of the hub are ready without running anything; the operator runs as a process beside it, as the chart's account.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localfleet.fleet import Fleet, Options
from tests.support.chart import ANYWHERE, CHART, NAMESPACE, helm
from tests.support.hub import Hub
from tests.support.manifests import ROOT, load
from tests.support.permissions import as_operator
from tests.support.processes import REAL, operating

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

FIRST = Path(__file__).parent / "data" / "first-chart.tgz"
"""The first chart of this repository (commit cb36fee): its definitions are in a folder that Helm never upgrades."""
CLASS = ROOT / "examples/start/2-classes.yaml"
OURS = "app.kubernetes.io/instance=modelplane"
EVERYTHING = (
    "deploy,svc,sa,pdb,netpol,role,rolebinding,clusterrole,clusterrolebinding,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,validatingwebhookconfigurations"
)
READY_WITHIN = 20.0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.up(Options(workers=0))
        yield Hub(fleet)
    finally:
        fleet.down()


async def test_a_release_lives_from_the_first_chart_to_its_end(
    hub: Hub, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async def run(*arguments: str, succeeds: bool = True) -> str:
        where = () if arguments[0] == "lint" else (f"--namespace={NAMESPACE}",)
        return await helm(*arguments, *where, kubeconfig=hub.fleet.kubeconfig("hub"), succeeds=succeeds)

    def definition(name: str = "modeldeployments.modelplane.ai") -> str:
        return hub.kubectl("get", "crd", name, "-ojsonpath={.metadata.labels}{.spec.versions[0].schema}")

    await run("install", "modelplane", str(FIRST), "--create-namespace", "--wait", "--timeout=2m")
    old = definition()
    hub.kubectl("apply", "-f", str(CLASS))
    classes = {one["metadata"]["name"] for one in load(CLASS)}

    upgrade = ("upgrade", "modelplane", str(CHART), f"--set={ANYWHERE}", "--wait", "--timeout=2m")
    said = await run(*upgrade, succeeds=False)
    assert "invalid ownership metadata" in said  # nothing was changed: it is to be asked for
    assert definition() == old
    await run(*upgrade, "--take-ownership")
    new = definition()
    assert '"app.kubernetes.io/managed-by":"Helm"' in new
    assert new != old

    # By hand, as where `crds.enabled` is false, and by Helm after that: neither is in the other's way.
    hub.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    await run(*upgrade)
    assert definition() == new

    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(as_operator(hub))
    with operating(kubeconfig, tmp_path, "--hub-gateway=apart", module=REAL) as operator:
        await operator.leads()
        hub.until(lambda: "Accepted" in hub.kubectl("get", "icl", "-oyaml"), "a class to be judged")

    await run("rollback", "modelplane", "1", "--wait", "--timeout=2m")
    assert names(hub, "icl") == classes  # their definitions belong to no release now, and stay
    assert hub.kubectl("get", "validatingadmissionpolicies", "-l", OURS, "-oname") == ""
    await run(*upgrade, "--take-ownership")

    await run("uninstall", "modelplane", "--wait", "--timeout=2m")
    assert hub.kubectl("get", EVERYTHING, "-A", "-l", OURS, "-oname") == ""
    assert definition() == new
    assert names(hub, "icl") == classes

    began = time.monotonic()
    await run("install", "modelplane", str(CHART), f"--set={ANYWHERE}", "--wait", "--timeout=2m")
    installed = time.monotonic() - began
    kubeconfig.write_text(as_operator(hub))  # the account is another one
    began = time.monotonic()
    with operating(kubeconfig, tmp_path, "--hub-gateway=apart", module=REAL) as operator:
        while (await operator.page("/readyz"))[0] != 200:
            assert time.monotonic() - began < 120.0
            await asyncio.sleep(0.05)
        ready = time.monotonic() - began
    measured(f"helm install of pods that are ready at once: {installed:.1f} s; the process, to Ready: {ready:.1f} s")


def names(hub: Hub, kind: str) -> set[str]:
    return {one.partition("/")[2] for one in hub.kubectl("get", kind, "-oname").split()}
