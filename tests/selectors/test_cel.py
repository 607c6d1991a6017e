"""Selectors: what a person is told, what one device's bad value does, and that nothing stalls or escapes.

That they mean what they mean to the API server is in test_cel_conformance.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import Device, Evaluation, SelectorError, Version
from tests.selectors.celoracle.generate import Generator

_ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
_MEMORY = 'device.capacity["gpu.nvidia.com"].memory'

HOPPER = Device.of(
    "gpu.nvidia.com",
    attributes={
        "architecture": "Hopper",
        "cores": 8,
        "ecc": True,
        "mig": False,
        "cudaComputeCapability": Version("9.5.3"),
        "driverVersion": Version("9.0"),
        "resource.kubernetes.io/pcieRoot": "pci0",
        "empty": None,
        "huge": 2**63,
    },
    capacity={"memory": "40960Mi", "broken": "10Mo", "slots": "16"},
)


def refusal(text: str) -> str:
    """What a person is told about a selector that cannot be used."""
    with pytest.raises(SelectorError) as refused:
        cel.compile(text)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", '1:1: the selector is empty; write a condition, such as device.driver == "gpu.nvidia.com"'),
        (" \n ", "1:1: the selector is empty"),
        ("true &&", "1:8: the selector ends too early; complete the condition"),
        ("(true", "1:1: the ( is never closed"),
        ("device.driver == 'gpu", "1:18: a string that is never closed or has a wrong escape; close the string"),
        ("true and true", "1:6: syntax error at and; write &&"),
        ("device.driver = 'a'", "1:15: unexpected =; compare with =="),
        ("driver == 'a'", "1:1: driver is not known; the only variable is device"),
        ("device.driver == nvidia", '1:18: nvidia is not known; texts stand in quotes: "nvidia"'),
        ("device.vendor == 'a'", "1:8: a device has no vendor; it has allowMultipleAllocations, attributes, capacity"),
        ("device.driver", "1:1: the selector is a string, not a condition; compare it with =="),
        (_MEMORY, "1:1: the selector is a Quantity, not a condition; compare it, such as with .compareTo(quantity("),
        (
            f'{_MEMORY} > quantity("80Gi")',
            '1:42: > cannot be applied to Quantity and Quantity; write .isGreaterThan(quantity("80Gi"))',
        ),
        (
            f'{_MEMORY} >= "80Gi"',
            '1:42: >= cannot be applied to Quantity and string; write .compareTo(quantity("80Gi")) >= 0',
        ),
        (f'{_MEMORY} == "80Gi"', 'compare it with quantity("80Gi")'),
        (f'{_MEMORY}.add("1") == quantity("2")', "it is Quantity.add(Quantity) or Quantity.add(int)"),
        (f'{_MEMORY} + quantity("1") == quantity("2")', "write .add(...)"),
        ('semver("1.0.0") < semver("2.0.0")', 'write .isLessThan(semver("2.0.0"))'),
        (f"{_MEMORY} > 40", 'Quantity and int; write .isGreaterThan(quantity("40Gi"))'),
        (f"{_MEMORY} >= 85899345920", 'write .compareTo(quantity("85899345920")) >= 0'),
        (f'{_MEMORY} > "many"', 'write .isGreaterThan(quantity("79Gi"))'),
        ('1 == "1"', "1:3: == cannot be applied to int and string; numbers and truth values stand without quotes"),
        ("1 == 1.0", "1:3: == cannot be applied to int and double; write both numbers in the same way"),
        (f"isGreaterThan({_MEMORY}, quantity('1'))", "1:1: isGreaterThan() is a method; write Quantity.isGreaterThan("),
        (f"{_MEMORY}.sign() == 1", "sign() is not a method; write sign(Quantity)"),
        ("device.driver.startsWith()", "a string has no startsWith()"),
        ("has(device.driver == 'a')", "1:5: has() needs a field selection; write has(device.attributes["),
        ("device.driver.foo()", "1:15: there is no function foo()"),
        (f'{_MEMORY}.compareTo("80Gi") >= 0', 'write .compareTo(quantity("80Gi"))'),
        (f"{_ATTRIBUTES}.cores.isGreaterThan(4)", "1:43: an attribute has no isGreaterThan() for (int); write > 4"),
        ('device.driver.startswith("gpu")', "there is no function startswith(); write startsWith()"),
        (
            'device.attributes["gpu.nvidia.com/architecture"] == "Hopper"',
            'write device.attributes["gpu.nvidia.com"].architecture',
        ),
        ('device.attributes["gpu.nvidia.com"] == "Hopper"', 'write device.attributes["gpu.nvidia.com"].name'),
        ("quantity() == quantity('1')", "quantity() does not take ()"),
        (f"not {_ATTRIBUTES}.ecc", "1:5: syntax error at device; write ! in place of not"),
        ("sets.foo([1])", "1:1: there is no function sets.foo()"),
        ("device.driver.matches('(')", "1:23: the regular expression is not valid: missing ): ("),
        ('duration("1h") == duration("1h")', "1:1: duration() is not available; dates and durations are not supported"),
        ("type(1) == type(2)", "1:1: type() is not available; comparing types costs more than the API server allows"),
        ("[1, 'a'].size() == 2", "1:5: all elements must be of one type: expected int, found string"),
        (f"{_ATTRIBUTES}.cores.all(x, x)", "all() needs a list or a map, not any; an attribute is a single value"),
        ("string(1) != string(2)", "1:1: the selector may cost countless units, 1,000,000 are allowed"),
        ("device.driver ==\n  gpu", "2:3: gpu is not known"),
        ("9223372036854775808 > 0", "1:1: the number has more than 64 bits"),
        ("for == 1", "1:1: for is a reserved word"),
        ("a" * 10_241, "1:1: the selector is longer than 10240 bytes"),
    ],
)  # fmt: skip
def test_a_selector_that_cannot_work_is_refused_with_the_place_and_what_to_write(text: str, told: str) -> None:
    assert told in refusal(text)


@pytest.mark.parametrize(
    ("published", "condition", "told"),
    [
        ("81559Mi", 'compareTo(quantity("80Gi")) >= 0', "memory is 81559Mi (79.6Gi), needs >= 80Gi: write 79Gi"),
        ("23034Mi", 'isGreaterThan(quantity("24Gi"))', "memory is 23034Mi (22.4Gi), needs > 24Gi: write 22Gi"),
        ("80Gi", 'compareTo(quantity("81Gi")) >= 0', "memory is 80Gi, needs >= 81Gi: write 80Gi"),
        ("81559Mi", 'compareTo(quantity("86G")) >= 0', "memory is 81559Mi (85.5G), needs >= 86G: write 85G"),
        ("81559Mi", 'compareTo(quantity("141Gi")) >= 0', "memory is 81559Mi, needs >= 141Gi"),
        ("81559Mi", 'isLessThan(quantity("79Gi"))', "memory is 81559Mi, needs < 79Gi"),
        ("79", 'compareTo(quantity("80")) >= 0', "memory is 79, needs >= 80"),
    ],
)
def test_a_memory_that_is_missed_by_little_is_proposed_in_the_user_s_unit(
    published: str, condition: str, told: str
) -> None:
    device = Device.of("g", capacity={"memory": published})
    assert cel.evaluate(cel.compile(f'device.capacity["g"].memory.{condition}'), device).reason == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('device.driver == "nic"', 'driver is "gpu.nvidia.com", needs "nic"'),
        (f'{_MEMORY}.compareTo(quantity("80Gi")) >= 0', "memory is 40960Mi, needs >= 80Gi"),
        (f'{_MEMORY}.isGreaterThan(quantity("80Gi"))', "memory is 40960Mi, needs > 80Gi"),
        (f'{_MEMORY} == quantity("1Gi")', "memory is 40960Mi, needs 1Gi"),
        (f'{_ATTRIBUTES}.ecc && {_MEMORY}.isLessThan(quantity("1Gi"))', "memory is 40960Mi, needs < 1Gi"),
        (f'{_ATTRIBUTES}.architecture in ["Ada", "Ampere"]', 'architecture is "Hopper", needs one of "Ada", "Ampere"'),
        (f'{_ATTRIBUTES}.architecture != "Hopper"', 'architecture is "Hopper", needs anything but "Hopper"'),
        (f"16 <= {_ATTRIBUTES}.cores", "cores is 8, needs >= 16"),
        (f"{_ATTRIBUTES}.mig", "mig is false, needs true"),
        (f"!{_ATTRIBUTES}.ecc", "ecc is true, needs false"),
        (
            f'{_ATTRIBUTES}.cudaComputeCapability.compareTo(semver("10.0.0")) >= 0',
            "cudaComputeCapability is 9.5.3, needs >= 10.0.0",
        ),
        (
            'device.attributes["resource.kubernetes.io"].pcieRoot == "pci1"',
            'resource.kubernetes.io/pcieRoot is "pci0", needs "pci1"',
        ),
        (
            f'{_ATTRIBUTES}.arch == "Hopper"',
            "the device has no attribute gpu.nvidia.com/arch: it has architecture, cores, cudaComputeCapability, "
            "driverVersion, ecc, empty and 2 more",
        ),
        (
            'device.attributes["amd.com"].arch == "Hopper"',
            "the device has no attribute amd.com/arch: the device has those of gpu.nvidia.com, resource.kubernetes.io",
        ),
        (
            f'{_ATTRIBUTES}.cudaComputeCapability == "10.0.0"',
            'a version cannot be compared with a string: write .compareTo(semver("10.0.0")) == 0',
        ),
        (f"has({_ATTRIBUTES}.arch)", "the device has no arch"),
        ('"amd.com" in device.attributes', "the device has no attributes of amd.com"),
        (f"{_ATTRIBUTES}.mig || {_ATTRIBUTES}.cores == 9", "mig is false, needs true and cores is 8, needs 9"),
        (f"{_ATTRIBUTES}.cores", "cores is 8, not true or false"),
        (f"{_ATTRIBUTES}.architecture > 5", "> cannot be applied to a string and an int"),
        ('device.driver.startsWith("amd")', '`device.driver.startsWith("amd")` is false'),
        (f"1 / ({_ATTRIBUTES}.cores - 8) == 1", "division by zero"),
    ],
)
def test_a_device_that_does_not_match_says_what_it_has_and_what_is_needed(text: str, told: str) -> None:
    verdict = cel.evaluate(cel.compile(text), HOPPER)

    assert (verdict.matched, verdict.reason) == (False, told)


def test_a_device_that_matches_needs_no_reason() -> None:
    assert cel.evaluate(cel.compile('device.driver == "gpu.nvidia.com"'), HOPPER) == Evaluation(matched=True)


def test_malformed_values_are_listed_and_fail_only_who_reads_them() -> None:
    assert HOPPER.malformed == (
        'attribute driverVersion: "9.0" is not a semantic version: write three numbers, such as 9.0.0',
        "attribute empty has no value",
        "attribute huge has more than 64 bits",
        'capacity broken: "10Mo" is not a quantity: Mo is none of the suffixes'
        " Ki, Mi, Gi, Ti, Pi, Ei, n, u, m, k, M, G, T, P, E",
    )
    read = cel.evaluate(cel.compile(f'{_ATTRIBUTES}.driverVersion.isGreaterThan(semver("1.0.0"))'), HOPPER)
    unread = cel.evaluate(cel.compile(f"has({_ATTRIBUTES}.driverVersion) && {_ATTRIBUTES}.cores == 8"), HOPPER)
    assert (read.matched, read.reason) == (False, HOPPER.malformed[0])
    assert unread.matched


def test_the_nearest_miss_has_the_most_of_what_is_needed() -> None:
    selector = cel.compile('device.driver == "g" && device.capacity["g"].memory.compareTo(quantity("80Gi")) >= 0')
    devices = [
        Device.of("g", capacity={"memory": "24Gi"}),
        Device.of("g", capacity={"memory": "79Gi"}),
        Device.of("g", capacity={"memory": "40Gi"}),
        Device.of("g"),
        Device.of("nic", capacity={"memory": "79Gi"}),
    ]

    nearest = sorted(devices, key=lambda device: -cel.evaluate(selector, device).measure_closeness)

    assert nearest == [devices[1], devices[2], devices[0], devices[3], devices[4]]


def test_devices_are_told_apart_by_type_as_well_as_by_value() -> None:
    selector = cel.compile('device.attributes["d"].x == 1')

    matched = [cel.evaluate(selector, Device.of("d", attributes={"x": x})).matched for x in (1, True, "1")]

    assert matched == [True, False, False]
    assert Device.of("d", attributes={"x": "1.0.0"}) != Device.of("d", attributes={"x": Version("1.0.0")})


def test_a_key_is_split_at_its_first_slash() -> None:
    device = Device.of("d", attributes={"a/b/c": "x", "e": "y"})
    selector = cel.compile('device.attributes["a"]["b/c"] == "x" && device.attributes.d.e == "y"')

    assert cel.evaluate(selector, device).matched


def _doubled(times: int) -> str:
    """A selector whose variables each hold twice the last."""
    text = "x.size() > 0"
    for _ in range(times):
        text = f"cel.bind(x, x + x, {text})"
    return f'cel.bind(x, ["aaaaaaaaaaaaaaaa"], {text})'


def _shared(times: int) -> str:
    """A selector that compares two lists whose parts are shared, 2**times in all."""
    text = "x == y"
    for _ in range(times):
        text = f"cel.bind(x, [x, x], cel.bind(y, [y, y], {text}))"
    return f"cel.bind(x, [device.driver], cel.bind(y, [device.driver], {text}))"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "true" + ")" * 5000,
        "[" * 5000,
        "!" * 10_000 + "true",
        "-" * 10_000 + "1 == 1",
        " + ".join(["1"] * 2500) + " == 1",
        " && ".join(["true"] * 1700),
        "device" + ".a" * 5000,
        "true ? " * 1000 + "true",
        "{" * 3000,
        '"' + "\\" * 9_999,
        "r'" * 4000,
        "1" * 10_000 + " == 1",
        "1." + "1" * 10_000 + " == 1.0",
        f'isQuantity("{"9" * 10_000}")',
        'isQuantity("1e999999999")',
        f'isSemver("{"9" * 10_000}.0.0")',
        "lists.range(1000000000).size() > 1",
        "lists.range(30000).all(a, lists.range(30000).all(b, a + b >= 0))",
        "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, true))))",
        'device.driver.matches("^(([a-z.])+)+$!")',
        'device.driver.matches("(a?){1000}a{1000}")',
        f'"{"a" * 5000}".matches("(.*)(.*)(.*)(.*)(.*)(.*)(.*)[0-9]")',
        f'"{"a" * 1000}".replace("a", "{"b" * 1000}").replace("b", "{"c" * 1000}").size() > 0',
        f'"{"a" * 3000}".split("").distinct().size() > 0',
        _doubled(40),
        _doubled(60),
        _shared(40),
    ],
    ids=range(27),
)  # fmt: skip
def test_hostile_selectors_end_soon(text: str) -> None:
    """By a refusal or by the budget: so many lines of Python take about a second under the tracer, a tenth without."""
    lines = 0

    def count(*_: object) -> object:
        nonlocal lines
        lines += 1
        return count

    device = Device.of("gpu." * 15, attributes={f"d{i}.example.com/a": "x" * 64 for i in range(32)})
    cel.compile("true")  # the first one of a process makes the grammar's tables as well
    sys.settrace(count)  # type: ignore[arg-type]
    try:
        assert "internal error" not in cel.evaluate(cel.compile(text), device).reason
    except SelectorError as refused:
        assert "internal error" not in str(refused)
    finally:
        sys.settrace(None)
    assert lines < 2_000_000


def test_what_takes_too_many_steps_is_a_non_match_that_says_so() -> None:
    device = Device.of("d", attributes={f"a{i:02}": i for i in range(32)})
    over = 'device.attributes["d"].all'
    selector = cel.compile(f"{over}(a, {over}(b, {over}(c, a + b != c))) || true")

    verdict = cel.evaluate(selector, device)

    assert (verdict.matched, verdict.reason) == (False, "the selector takes more than 100000 steps on this device")


@given(st.text(max_size=60))
def test_no_text_does_worse_than_be_refused(text: str) -> None:
    _try(text)


@given(st.integers(0, 2**32), st.data())
def test_no_mutation_of_a_selector_does_worse_than_be_refused(seed: int, data: st.DataObject) -> None:
    text = Generator(seed, wrong=0.1).selector(limit=200)
    at = data.draw(st.integers(0, len(text)))
    upto = data.draw(st.integers(at, min(at + 5, len(text))))

    _try(text[:at] + data.draw(st.text(alphabet="()[]{}.?:,!-+&|'\"\\x1 d", max_size=3)) + text[upto:])


def _try(text: str) -> None:
    try:
        selector = cel.compile(text)
    except SelectorError as refused:
        assert "internal error" not in str(refused)
        assert 1 <= refused.line <= text.count("\n") + 1
        return
    verdict = cel.evaluate(selector, HOPPER)
    assert "internal error" not in verdict.reason
    assert verdict.matched == (verdict.reason == "")
    assert len(verdict.reason) <= 256


def test_threads_may_share_everything() -> None:
    generator = Generator(7)
    texts = [generator.selector(limit=200) for _ in range(60)]

    def answers(_: int) -> list[str]:
        cel.forget()
        cel.evaluate.cache_clear()
        return [_answer(text) for text in texts]

    with ThreadPoolExecutor(8) as pool:
        several = list(pool.map(answers, range(8)))

    assert several == [answers(0)] * 8


def _answer(text: str) -> str:
    try:
        return str(cel.evaluate(cel.compile(text), HOPPER))
    except SelectorError as refused:
        return str(refused)


def test_the_process_keeps_its_recursion_limit() -> None:
    before = sys.getrecursionlimit()

    cel.compile('device.driver == "a"')

    assert (sys.getrecursionlimit(), "celpy" in sys.modules) == (before, False)


def test_the_same_question_is_answered_from_memory() -> None:
    cel.evaluate.cache_clear()
    text, content = 'device.driver == "d"', {"a": 1, "b": "x"}

    for _ in range(100):
        cel.evaluate(cel.compile(text), Device.of("d", attributes=dict(content)))

    assert (cel.evaluate.cache_info().hits, cel.evaluate.cache_info().misses) == (99, 1)
