"""Every bound of the contract holds on a real API server: a value at it is stored, one past it is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from localfleet.kubeclient import ApiError
from tests.api.contract import contracts, rich
from tests.support.api import Api, named
from tests.support.bounds import COMPLAINTS, Case, cases
from tests.support.manifests import ABSENT, Manifest, change, find

pytestmark = pytest.mark.fleet

# Values at a bound that another rule refuses; the object with every field set shows one that is stored.
REFUSED_FOR_ANOTHER_REASON = {
    "containers[].name minLength": "the container is always called engine",
    "containers[].command[] maxLength": "rich.yaml has it in three members, and all together is bounded too",
    "containers[].args[] maxLength": "the same",
    "containers[].env[].value maxLength": "the same",
    "containers[].name maxLength": "the container is always called engine",
    "defaultRequest.cpu maxLength": "it is a number of processors",
    "defaultRequest.memory maxLength": "it is an amount",
    "defaultRequest.ephemeral-storage maxLength": "it is an amount",
    "LLMInference spec.memory maxLength": "it is an amount",
    "podCidr maxLength": "it is a range of addresses",
    "serviceCidr maxLength": "it is a range of addresses",
    "nodeCidr maxLength": "it is a range of addresses",
    "vpcCidr maxLength": "it is a range of addresses",
    "vnetCidr maxLength": "it is a range of addresses",
    "subnetCidr maxLength": "it is a range of addresses",
    "subnetCidrs[] maxLength": "they are ranges of addresses",
    "subnetCidrs maxItems": "they are ranges of addresses",
    "subnetCidrs minItems": "they are ranges of addresses",
    "loadBalancerSourceRanges maxItems": "they are ranges of addresses",
    "sharedMemorySize maxLength": "it is an amount",
    "maxSharedMemory maxLength": "it is an amount",
    "failover.after maxLength": "it is a time",
    "failover.maxShare maxLength": "it is a percentage",
    "spec.maintenance[].duration maxLength": "it is a time",
    "spec.maxDisruptions maxLength": "it is a percentage",
    "spec.components maxItems": "there are fewer names than that",
    "spec.stack.components maxItems": "the same",
    "engines[].ranks maximum": "rich.yaml's engines have phases, which go with one",
    "members minItems": "a gang needs both; the second engine has one member",
    "resources.requests.cpu maxLength": "it is above the limit",
    "resources.requests.memory maxLength": "it is above the limit",
    "resources.requests.ephemeral-storage maxLength": "it is above the limit",
}


def _without_phases(manifest: Manifest) -> Manifest:
    """The same engines, each for itself: with split phases there are always two."""
    for at in ("spec.template.spec", "spec"):
        engines = find(manifest, f"{at}.engines")
        if engines is not ABSENT:
            plain = [{key: value for key, value in engine.items() if key != "phase"} for engine in engines]
            return change(change(manifest, f"{at}.engines", plain), f"{at}.serving", ABSENT)
    return manifest


def _base(case: Case) -> Manifest:
    manifest = rich()[case.of]
    return _without_phases(manifest) if case.path.endswith(".engines") else manifest


def _value(case: Case, value: Any) -> Any:
    """A list of engines goes into an object without phases."""
    if not case.path.endswith(".engines") or value is ABSENT:
        return value
    return [{key: of for key, of in engine.items() if key != "phase"} for engine in value]


def _place(path: str, manifest: Manifest) -> str:
    """The path as the API server writes it."""
    for brackets in re.findall(r"\{\}", path):
        before = path.split(brackets, 1)[0]
        path = path.replace(brackets, f".{next(iter(find(manifest, before)))}", 1)
    return path.replace("[]", "[0]")


ALL = [*cases()]


@pytest.mark.parametrize("case", [case for case in ALL if case.path.startswith("spec")], ids=str)
async def test_bound_of_a_spec_holds(api: Api, case: Case) -> None:
    base = _base(case)
    if not any(str(case).endswith(exception) for exception in REFUSED_FOR_ANOTHER_REASON):
        assert await api.refusal(change(base, case.path, _value(case, case.stored))) == ""

    complaint = await api.refusal(change(base, case.path, _value(case, case.refused)))

    assert _place(case.path, base) in complaint
    assert re.search(COMPLAINTS[case.keyword], complaint)


@pytest.mark.parametrize("case", [case for case in ALL if case.path.startswith("status")], ids=str)
async def test_bound_of_a_status_holds(api: Api, case: Case) -> None:
    manifest = rich()[case.of]
    stored = await api.create(named(manifest, "bounds"))
    try:
        await api.replace(stored | {"status": change(stored, case.path, case.stored)["status"]}, "status")
        stored = await api.get(stored)
        with pytest.raises(ApiError) as refused:
            await api.replace(change(stored, case.path, case.refused), "status")
    finally:
        await api.delete(stored)

    assert _place(case.path, manifest) in str(refused.value)
    assert re.search(COMPLAINTS[case.keyword], str(refused.value))


@pytest.mark.parametrize("of", rich())
async def test_object_with_every_field_set_is_stored_whole(api: Api, of: str) -> None:
    manifest = rich()[of]

    admitted = await api.admit(manifest)

    assert _same_spec(manifest["spec"], admitted["spec"])


def _same_spec(given: Any, stored: Any) -> bool:
    """Everything given is stored as it was; defaults may have joined it."""
    match given:
        case dict():
            return all(key in stored and _same_spec(value, stored[key]) for key, value in given.items())
        case list():
            return len(given) == len(stored) and all(map(_same_spec, given, stored))
        case _:
            return given == stored


DEFAULTS = [
    pytest.param(of, path, field["default"], id=f"{of} {path}")
    for of, manifest in rich().items()
    for path, field in contracts()[of.partition(" ")[0]].fields.items()
    if "default" in field and path.startswith("spec") and find(manifest, path.rpartition(".")[0]) is not ABSENT
]


@pytest.mark.parametrize(("of", "path", "default"), DEFAULTS)
async def test_default_is_stored_when_nothing_is_given(api: Api, of: str, path: str, default: Any) -> None:
    manifest = change(rich()[of], path, ABSENT)
    if path.endswith("serving.mode"):
        manifest = _without_phases(rich()[of])
        manifest = change(manifest, path.removesuffix(".mode"), {})
    elif path.endswith("role"):  # the first member is a Worker, and its default is Standalone: the second engine's
        path = path.replace("engines[]", "engines[1]")
        manifest = change(rich()[of], path, ABSENT)
    elif path.endswith("fabric.type"):
        manifest = change(manifest, f"{path.removesuffix('.type')}.infiniband", ABSENT)

    assert find(await api.admit(manifest), path) == default
