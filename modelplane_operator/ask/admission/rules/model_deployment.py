"""A ModelDeployment as it is written: selectors and arguments that cannot be used, and where replicas would run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeloop.objects import Key
from kubeloop.verdict import Verdict
from kubeloop.words import counted, listed, sentence
from modelplane_operator.api.model_deployment import DeployedEngine, ModelDeployment
from modelplane_operator.models.deployment.plan.course import Course, decide
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.replica.render import misheard, unheard
from modelplane_operator.scheduling import budget
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.problems import InvalidSelector
from modelplane_operator.scheduling.prose import leaving, problem, summary, where
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import SelectorError

MOVES = 3  # told one by one


def judge(seen: Observed, old: ModelDeployment | None) -> Verdict:
    """What the controller would decide now of what it would see; `seen.deployment` is the new one."""
    new = seen.deployment
    refused = (*_selectors(new, old), *(misheard(engine) for engine in _edited(new, old)))
    if any(refused):
        return Verdict(tuple(sentence(words) for words in refused if words))
    course = decide(seen)
    told = (forecast(course.decision),)
    if old is not None and new.spec == old.spec:
        return Verdict(forecast=told)
    deaf = (sentence(words) for engine in _edited(new, old) if (words := unheard(engine)))
    warned = () if course.decision.settled else told
    return Verdict((), (*warned, *deaf, *_moves(course)), told if course.decision.settled else ())


def forecast(decision: Decision) -> str:
    """A decision in a line, as the condition ReplicasScheduled would tell it, and its places."""
    places = where(decision)
    return sentence(f"decided now: {summary(decision)}", f"placed on {places}" if places else "")


def _selectors(new: ModelDeployment, old: ModelDeployment | None) -> Iterator[str]:
    """Those that do not compile and were not there before."""
    known = frozenset(budget.texts(old.replica)) if old else frozenset[str]()
    for engine in new.replica.engines:
        for member in engine.members:
            for request in member.node_selector.devices if member.node_selector else ():
                texts = {selector.cel or "" for selector in request.selectors} - known
                for wrong in filter(None, map(_wrong, sorted(texts))):
                    yield problem(InvalidSelector(engine.name, member.role, request.name, wrong))


def _wrong(text: str) -> str:
    try:
        cel.compile(text)
    except SelectorError as error:
        return str(error)
    return ""


def _edited(new: ModelDeployment, old: ModelDeployment | None) -> Iterator[DeployedEngine]:
    """The engines that are not as they were."""
    known = {engine.name: engine for engine in old.replica.engines} if old else dict[str, DeployedEngine]()
    return (engine for engine in new.replica.engines if known.get(engine.name) != engine)


def _moves(course: Course) -> Iterator[str]:
    if course.changed:
        count = counted(len(course.changed), "running replica")
        yield sentence(f"{count} would get another shape, which restarts them in turn: {_named(course.changed)}")
    if removed := course.decision.removed:
        told = [f"{one.replica.key.name} on {one.replica.cluster}: {leaving(one.why)}" for one in removed[:MOVES]]
        more = [f"and {len(removed) - MOVES} more"] if len(removed) > MOVES else []
        yield sentence(f"{counted(len(removed), 'running replica')} would be removed", *told, *more)


def _named(keys: Iterable[Key]) -> str:
    return listed(sorted(key.name for key in keys))
