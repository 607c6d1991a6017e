"""The executor of the steps that run Helm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never, get_args

from kubeloop.helm.driver import Helm
from kubeloop.plan import HelmStep, Install, RollBack, Uninstall
from kubeloop.strands import Executors, StepContext


@dataclass(frozen=True, slots=True)
class HelmExecutor:
    """Starts runs of Helm. Their results are in `Helm.runs`, and in the records on the cluster."""

    helm: Helm

    async def begin(self, step: HelmStep, context: StepContext) -> None:
        """Start the run for a step; raises HelmError for an invalid release."""
        context.may_write()
        cluster = context.cluster(step.cluster)
        match step:
            case Install(release, wait=wait, definitions=definitions):
                self.helm.install(cluster, release, wait=wait, definitions=definitions)
            case RollBack(release, revision):
                self.helm.rollback(cluster, release, revision)
            case Uninstall(release):
                self.helm.uninstall(cluster, release)
            case _:
                assert_never(step)


def by(helm: Helm | None) -> Executors:
    """Return the executors of Helm's steps; none without Helm."""
    return dict.fromkeys(get_args(HelmStep), HelmExecutor(helm)) if helm else {}
