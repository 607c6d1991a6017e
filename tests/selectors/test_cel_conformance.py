"""Our selectors against the API server's: what it accepts and what it matches, recorded and live.

What differs on purpose is listed here and in docs/selector-language.md; a difference that is not listed fails, and so
does one that is listed and has gone.
"""

import re
from pathlib import Path

import pytest

from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import SelectorError
from tests.selectors.celoracle import oracle
from tests.selectors.celoracle.oracle import Answer

# Why we refuse what the API server accepts, by our own words.
REFUSED_HERE = (
    r" is not available",  # libraries we lack
    r"message literals are not supported",
    r"nested more than 100 levels",
    r"the key of a map cannot be",
    r"cannot be applied to null and null",  # the API server finds an overload for dates
)
# Where a verdict differs; the reasons are in docs/selector-language.md.
OTHER_VERDICT = frozenset(
    {
        'isQuantity("Mi")',
        'isQuantity("+")',
        'isQuantity(".")',
        'isQuantity(".k")',
        'isQuantity("1e400")',
        'quantity("50k") == quantity("49k").add(quantity("1k"))',
        'cel.bind(q, quantity("1.5Gi"), q.add(quantity("1Gi")).compareTo(q) == 0)',
        'cel.bind(q, quantity("1Gi"), q.isLessThan(quantity("1.5Gi")) && q.isInteger())',
    }
)
# The API server's `==` finds no equality for a sum on its right; ours does, so sums on the right are not compared.
_SUM_ON_THE_RIGHT = re.compile(r"[=!]= [^&|]*\.(add|sub)\(")


def ours(selector: str, devices: list[cel.Device]) -> Answer:
    """What we make of the selector, and why we refuse it if we do."""
    try:
        compiled = cel.compile(selector)
    except SelectorError as error:
        return Answer(selector, accepted=False, outcomes=str(error))
    verdicts = [cel.evaluate(compiled, device) for device in devices]
    assert not any("internal error" in verdict.reason for verdict in verdicts)
    return Answer(selector, accepted=True, outcomes="".join("+" if v.matched else "-" for v in verdicts))


def difference(theirs: Answer, devices: list[cel.Device]) -> str | None:
    """How our answer differs from the API server's, other than as listed."""
    mine = ours(theirs.selector, devices)
    assert "internal error" not in mine.outcomes
    if not mine.accepted:
        listed = any(re.search(reason, mine.outcomes) for reason in REFUSED_HERE)
        return None if listed or not theirs.accepted else f"refused here: {mine.outcomes}"
    if not theirs.accepted:
        return "accepted here"
    same = mine.outcomes == theirs.outcomes.replace("!", "-")
    return None if same else f"matches {mine.outcomes} here, {theirs.outcomes} there"


def differences(answers: list[Answer]) -> dict[str, str]:
    """The selectors whose answers differ, and how."""
    devices = [oracle.device(written) for written in oracle.devices()]
    found = {answer.selector: difference(answer, devices) for answer in answers}
    return {selector: how for selector, how in found.items() if how is not None}


def unlisted(found: dict[str, str]) -> dict[str, str]:
    return {s: how for s, how in found.items() if s not in OTHER_VERDICT and not _SUM_ON_THE_RIGHT.search(s)}


def test_recorded_answers_are_ours_but_for_the_listed_differences() -> None:
    found = differences(oracle.recorded_answers())

    assert unlisted(found) == {}
    assert found.keys() >= OTHER_VERDICT


def test_the_recording_covers_every_written_selector() -> None:
    recorded = {answer.selector for answer in oracle.recorded_answers()}

    assert recorded >= set(oracle.written_selectors())


@pytest.fixture(scope="session")
def program() -> Path:
    """The oracle, built from the API server's library."""
    return oracle.build()


@pytest.mark.oracle
def test_the_recording_is_what_the_api_server_says_now(program: Path) -> None:
    recorded = oracle.recorded_answers()

    said = oracle.ask(program, [answer.selector for answer in recorded], oracle.devices())

    assert said == recorded


@pytest.mark.oracle
@pytest.mark.parametrize(("seed", "wrong"), [(101, 0.0), (102, 0.01), (103, 0.05), (104, 0.3)])
def test_generated_selectors_are_answered_as_the_api_server_does(program: Path, seed: int, wrong: float) -> None:
    selectors = oracle.generated_selectors(seed, 1500, wrong=wrong)

    assert unlisted(differences(oracle.ask(program, selectors, oracle.devices()))) == {}
