"""What the selectors of one deployment may cost together, and that what was worked out is remembered within bounds."""

from __future__ import annotations

import pytest

from kubeloop.memo import memoize_bounded
from modelplane_operator.scheduling import budget, prose
from modelplane_operator.scheduling.problems import Overdrawn
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import Device, SelectorError
from modelplane_operator.selectors.evaluate import BUDGET
from tests.support import builders as b

LONG = 'device.driver == "{}"'
# As dear as one evaluation may be: it runs out of steps, and is then explained.
DEAR = 'lists.range(200).all(x, lists.range(200).all(y, x + y >= 0)) && device.driver != "{}"'
DEVICES = frozenset(Device.of(f"gpu-{number}.example") for number in range(20))


def asking(*selectors: str) -> tuple[str, ...]:
    """The problems of a deployment whose requests have these selectors, eight each, four requests to an engine."""
    rows = [selectors[start : start + 8] for start in range(0, len(selectors), 8)]
    requests = [b.request(*row, name=f"r{number}") for number, row in enumerate(rows)]
    engines = [b.engine(*requests[start : start + 4], name=f"e{start}") for start in range(0, len(requests), 4)]
    return tuple(map(prose.problem, placement_request(b.deployment(*engines), devices=DEVICES).problems))


def test_what_deployments_usually_ask_for_is_far_within_the_budget() -> None:
    selectors = [f'device.attributes["gpu.nvidia.com"].kind{number}.matches("^H[0-9]+$")' for number in range(12)]

    assert asking(*selectors) == ()
    assert asking(*[LONG.format("x")] * 200) == (), "the same one two hundred times is one"


@pytest.mark.parametrize(
    ("selectors", "why"),
    [
        (
            [LONG.format("x" * 1000 + str(number)) for number in range(70)],
            "come to 71,460 characters of different selectors, and 65,536 are allowed",
        ),
        ([LONG.format(number) for number in range(129)], "129 different selectors, and 128 are allowed"),
        ([DEAR.format(number) for number in range(20)], "more than 2,000,000 steps on the devices of the fleet"),
    ],
    ids=["text", "number", "steps"],
)
def test_a_deployment_beyond_its_budget_is_told_which_bound_and_what_to_do(selectors: list[str], why: str) -> None:
    [told] = asking(*selectors)

    assert why in told
    assert "write shorter ones, or the same one in several requests" in told


def test_too_much_text_is_not_even_looked_at() -> None:
    cel.forget()
    selectors = [LONG.format("x" * 1000 + str(number)) for number in range(70)]
    asking(*selectors)

    assert not any(map(cel.knows, selectors))


def test_what_is_too_dear_is_given_up_when_it_has_cost_that_much() -> None:
    cel.forget()
    selectors = tuple(DEAR.format(number) for number in range(20))
    budget.prepare(selectors, DEVICES)

    asked = cel.evaluate.cache_info().misses
    assert asked <= budget.STEPS // BUDGET + 1
    assert isinstance(budget.overdrawn(selectors, DEVICES), Overdrawn)


def test_what_was_prepared_costs_nothing_any_more() -> None:
    cel.forget()
    selectors = (*(LONG.format("x" * 300 + str(number)) for number in range(60)), "device.driver ==")
    assert not budget.at_once(selectors, DEVICES), "18 KB of text"
    budget.prepare(selectors, DEVICES)
    assert budget.at_once(selectors, DEVICES)
    before = cel.evaluate.cache_info().misses

    assert budget.overdrawn(selectors, DEVICES) is None
    assert cel.evaluate.cache_info().misses == before


def test_a_refusal_is_remembered_and_told_in_the_same_words() -> None:
    cel.forget()
    told: set[str] = set()
    for _ in range(3):
        with pytest.raises(SelectorError) as caught:
            cel.compile("device.driver == ")
        told.add(f"{caught.value} {caught.value.position}")

    assert cel.knows("device.driver == ")
    assert len(told) == 1


def test_answers_are_kept_up_to_a_number_of_bytes() -> None:
    asked: list[str] = []

    def look(text: str) -> int:
        asked.append(text)
        return len(text)

    kept = memoize_bounded(most=100, size=len)(look)
    for letter in "abacadaeafagah":
        assert kept(letter * 20) == 20
        assert kept.cache_info().size <= 100
    assert "".join(text[0] for text in asked) == "abcdefgh", "what is asked for again and again is kept"
    assert not kept.knows("b" * 20)

    assert kept("x" * 1000) == 1000
    assert kept.knows("x" * 1000), "the last one is kept in any case"
    kept("y" * 1000)
    assert not kept.knows("x" * 1000)


@pytest.mark.parametrize(
    ("pattern", "text", "why"),
    [
        ("(a?){100}" * 1000, "a" * 64, "longer than 512 characters"),
        ("((a?){30}){30}" * 5, "a" * 64, "pattern too large"),
        (r"\\pL" * 150, "a" * 64, "pattern too large"),
    ],
)
def test_a_regular_expression_is_bounded_in_its_text_and_in_its_program(pattern: str, text: str, why: str) -> None:
    with pytest.raises(SelectorError, match=why):
        cel.compile(f'"{text}".matches("{pattern}")')


def test_a_pattern_is_read_in_one_way() -> None:
    pattern = r"\\Q\\E" * 80
    assert cel.evaluate(cel.compile(f'"".matches("{pattern}")'), Device.of("d")).matched


def test_matching_is_paid_for_by_text_and_program() -> None:
    device = Device.of("d", attributes={"text": "a" * 64})
    dear = cel.evaluate(cel.compile('device.attributes["d"].text.matches("((a?){30}){30}b")'), device)
    cheap = cel.evaluate(cel.compile('device.attributes["d"].text.matches("^a+$")'), device)

    assert dear.steps > 5_000
    assert cheap.steps < 200


def test_constants_of_one_selector_share_the_steps_of_one_evaluation() -> None:
    one = '"{}".matches("((a?){{30}}){{30}}b{}")'
    text = " || ".join(one.format("a" * 64, number) for number in range(90))

    verdict = cel.evaluate(cel.compile(text), Device.of("d"))
    assert "takes more than 100000 steps" in verdict.reason
