"""How calls are read and which of them a rule hits, as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localfleet.faultproxy.calls import UNCOUNTED, Call, read_call
from localfleet.faultproxy.rules import (
    Action,
    Answer,
    CloseWatch,
    Delay,
    Drop,
    Flood,
    HoldEvents,
    Match,
    OmitEvents,
    Reset,
    Rule,
    RuleError,
    Rules,
    Signal,
    Truncate,
    When,
    read_rule,
)

SSA = {"Content-Type": "application/apply-patch+yaml"}


def told(call: Call) -> tuple[str, ...]:
    place = f"{call.group}/{call.version}"
    full = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    return call.verb, place, full, call.namespace, call.name


@pytest.mark.parametrize(
    ("request_line", "wanted"),
    [
        ("GET /api/v1/pods?watch=true&resourceVersion=4", ("watch", "/v1", "pods", "", "")),
        ("GET /api/v1/pods?watch=0", ("list", "/v1", "pods", "", "")),
        ("GET /api/v1/namespaces/a/pods/b", ("get", "/v1", "pods", "a", "b")),
        ("GET /api/v1/namespaces/a", ("get", "/v1", "namespaces", "", "a")),
        ("PUT /api/v1/namespaces/a/finalize", ("update", "/v1", "namespaces/finalize", "", "a")),
        ("POST /apis/apps/v1/namespaces/a/deployments", ("create", "apps/v1", "deployments", "a", "")),
        ("PATCH /apis/modelplane.ai/v1alpha1/namespaces/a/modelreplicas/b/status",
         ("patch", "modelplane.ai/v1alpha1", "modelreplicas/status", "a", "b")),
        ("DELETE /apis/modelplane.ai/v1alpha1/inferenceclusters/b",
         ("delete", "modelplane.ai/v1alpha1", "inferenceclusters", "", "b")),
        ("DELETE /api/v1/namespaces/a/pods?labelSelector=x", ("deletecollection", "/v1", "pods", "a", "")),
        ("POST /api/v1/namespaces/a/serviceaccounts/b/token", ("create", "/v1", "serviceaccounts/token", "a", "b")),
        ("GET /apis/apps/v1", ("", "apps/v1", "", "", "")),
        ("GET /version", ("", "/", "", "", "")),
    ],
)  # fmt: skip
def test_a_request_line_says_what_a_call_is_about(request_line: str, wanted: tuple[str, ...]) -> None:
    method, _, target = request_line.partition(" ")
    path, _, query = target.partition("?")

    assert told(read_call(method, path, query, {})) == wanted


@pytest.mark.parametrize(
    ("method", "path", "query", "counted"),
    [
        ("POST", "/api/v1/namespaces/a/pods", "", True),
        ("POST", "/api/v1/namespaces/a/pods", "dryRun=All", False),
        ("POST", "/api/v1/namespaces/a/events", "", False),
        ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", "", False),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", "", False),
        ("POST", "/api/v1/namespaces/a/serviceaccounts", "", True),
        ("GET", "/api/v1/namespaces/a/pods/p", "", False),
    ],
)
def test_only_what_changes_the_world_is_numbered(method: str, path: str, query: str, *, counted: bool) -> None:
    assert read_call(method, path, query, {}).counted(UNCOUNTED) is counted


CALL = read_call("PATCH", "/apis/apps/v1/namespaces/a/deployments/web", "", {**SSA, "User-Agent": "modelplane/1"})


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(), True),
        (Match(verbs=("apply",)), True),
        (Match(verbs=("patch",)), True),
        (Match(verbs=("create", "update")), False),
        (Match(group="apps", resource="deployments", namespace="a", name="web"), True),
        (Match(resource="deployments", subresource="status"), False),
        (Match(resource="deployments", subresource=""), True),
        (Match(group=""), False),
        (Match(user_agent="modelplane"), True),
        (Match(mutating=False), False),
        (Match(mutating_call=7), True),
        (Match(mutating_call=8), False),
    ],
)
def test_every_given_field_of_a_match_must_hold(match: Match, *, hit: bool) -> None:
    rules = Rules(seed=1)
    rules.add(Rule(match, Drop()))

    assert bool(rules.fire(CALL, 7)) is hit


def pattern(match: Match, *, times: int | None = None, calls: int = 9, seed: int = 1) -> str:
    rules = Rules(seed)
    rules.add(Rule(match, Drop(), times=times))
    return "".join("x" if rules.fire(CALL, None) else "." for _ in range(calls))


def test_counts_choose_among_the_calls_that_match() -> None:
    assert pattern(Match(nth=4)) == "...x....."
    assert pattern(Match(every=3)) == "..x..x..x"
    assert pattern(Match(every=3), times=2) == "..x..x..."
    assert pattern(Match(), times=1) == "x........"


@given(st.integers(), st.floats(0, 1))
def test_a_seed_replays_its_chances_whatever_other_rules_draw(seed: int, probability: float) -> None:
    alone = Rules(seed)
    alone.add(Rule(Match(probability=probability), Drop()))
    beside = Rules(seed)
    beside.add(Rule(Match(probability=probability), Drop()))
    beside.add(Rule(Match(probability=0.5), Delay(0)))

    first = [bool(alone.fire(CALL, None)) for _ in range(20)]
    second = [1 in [active.id for active in beside.fire(CALL, None)] for _ in range(20)]

    assert first == second


def test_chances_differ_between_seeds_and_come_near_what_was_asked() -> None:
    patterns = {pattern(Match(probability=0.3), calls=400, seed=seed) for seed in range(5)}

    assert len(patterns) == 5
    assert all(80 < drawn.count("x") < 160 for drawn in patterns)


@pytest.mark.parametrize(
    "action",
    [
        Drop(),
        Reset(When.AFTER),
        Delay(0.5),
        Answer(429, retry_after=3, when=When.AFTER),
        Truncate(10),
        Flood("pages"),
        Signal(1234, when=When.AFTER),
        CloseWatch(2),
        HoldEvents(),
        OmitEvents(types=("DELETED",), name="web"),
    ],
)
def test_a_rule_survives_the_control_socket(action: Action) -> None:
    rule = Rule(Match(verbs=("create", "apply"), every=2), action, times=3)

    assert read_rule(rule.to_json()) == rule


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"action": {"kind": "Explode"}},
        {"action": {"kind": "Delay"}},
        {"action": {"kind": "Drop", "seconds": 1}},
        {"action": {"kind": "Reset", "when": "later"}},
        {"action": {"kind": "Drop"}, "match": {"verb": "get"}},
    ],
)
def test_a_rule_without_meaning_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(RuleError):
        read_rule(body)
