"""Review a ModelDeployment: invalid selectors and arguments, and where its replicas would run."""

from __future__ import annotations

from collections.abc import Iterator

from kubeloop.verdict import Verdict
from kubeloop.words import count_of, list_names, sentence
from modelplane_operator.api.model_deployment import DeployedEngine, ModelDeployment
from modelplane_operator.ask.admission.rules.maintenance import check_windows
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.rollout_plan import RolloutPlan, decide
from modelplane_operator.models.replica.render import misheard, unheard
from modelplane_operator.scheduling import budget
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.problems import InvalidSelector
from modelplane_operator.scheduling.prose import describe_leaving, problem, summary, where
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import SelectorError

MOVES = 3  # the warning counts the others
"""Number of removals that a warning lists."""


def check(observed: Observed, old: ModelDeployment | None) -> Verdict:
    """Return the verdict by the decision that the controller would take for `observed.deployment`, the new object."""
    new = observed.deployment
    rejections = (*_check_selectors(new, old), *(misheard(engine) for engine in _find_edited_engines(new, old)))
    windows = tuple(check_windows(new.spec.maintenance, old.spec.maintenance if old else ()))
    if windows or any(rejections):
        return Verdict((*windows, *(sentence(message) for message in rejections if message)))
    rollout_plan = decide(observed)
    decision_lines = (forecast(rollout_plan.decision),)
    if old is not None and new.spec == old.spec:
        return Verdict(forecast=decision_lines)
    port_warnings = (sentence(message) for engine in _find_edited_engines(new, old) if (message := unheard(engine)))
    placement_warnings = () if rollout_plan.decision.is_complete else decision_lines
    return Verdict(
        (),
        (*placement_warnings, *port_warnings, *_warn_of_disruption(rollout_plan)),
        decision_lines if rollout_plan.decision.is_complete else (),
    )


def forecast(decision: Decision) -> str:
    """Return a decision in one line, as the condition ReplicasScheduled would report it, with its placements."""
    placements = where(decision)
    return sentence(f"decided now: {summary(decision)}", f"placed on {placements}" if placements else "")


def _check_selectors(new: ModelDeployment, old: ModelDeployment | None) -> Iterator[str]:
    """Yield a message for each selector that does not compile and is new."""
    old_texts = frozenset(budget.texts(old.replica)) if old else frozenset[str]()
    for engine in new.replica.engines:
        for member in engine.members:
            for request in member.node_selector.devices if member.node_selector else ():
                texts = {selector.cel or "" for selector in request.selectors} - old_texts
                for error in filter(None, map(_find_compile_error, sorted(texts))):
                    yield problem(InvalidSelector(engine.name, member.role, request.name, error))


def _find_compile_error(text: str) -> str:
    """Return why a selector does not compile; "" if it does."""
    try:
        cel.compile(text)
    except SelectorError as error:
        return str(error)
    return ""


def _find_edited_engines(new: ModelDeployment, old: ModelDeployment | None) -> Iterator[DeployedEngine]:
    """Return the engines that are new or changed."""
    old_engines = {engine.name: engine for engine in old.replica.engines} if old else dict[str, DeployedEngine]()
    return (engine for engine in new.replica.engines if old_engines.get(engine.name) != engine)


def _warn_of_disruption(rollout_plan: RolloutPlan) -> Iterator[str]:
    """Yield warnings about running replicas that would restart or be removed."""
    if rollout_plan.changed:
        count = count_of(len(rollout_plan.changed), "running replica")
        restarted = list_names(sorted(key.name for key in rollout_plan.changed))
        yield sentence(f"{count} would get changed pods, and restart in turn: {restarted}")
        if not rollout_plan.surge and rollout_plan.decision.desired == 1:
            yield (
                "The fleet has no room for a second replica: the only one stops before the new one starts, and no "
                "request is answered until then. To avoid that, free a node, or scale to 2 replicas first"
            )
    if removed := rollout_plan.decision.removed:
        removals = [
            f"{removal.replica.key.name} on {removal.replica.cluster}: {describe_leaving(removal.reason)}"
            for removal in removed[:MOVES]
        ]
        omitted = [f"and {len(removed) - MOVES} more"] if len(removed) > MOVES else []
        yield sentence(f"{count_of(len(removed), 'running replica')} would be removed", *removals, *omitted)
