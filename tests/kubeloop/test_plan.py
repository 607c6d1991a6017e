"""Steps say what they do, and pruning spares what is wanted, terminating, or another's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects import Key, key_of
from kubeloop.plan import (
    KEEP,
    LET_GO,
    Apply,
    Create,
    Delete,
    RenewToken,
    Replace,
    SetFinalizer,
    Step,
    Uninstall,
    delete,
    prune,
    strands,
)
from kubeloop.types import CONFIG_MAP, NAMESPACE, UnknownTypeError
from modelplane_operator.api import labels

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]


def config_map(name: str, *, owner: str = "us", **metadata: Any) -> Manifest:
    known = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {labels.OWNER_UID: owner}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": known | metadata}


KEY = Key("team", "a")
DELETE = Delete(CONFIG_MAP, KEY, "uid-a", "us", "east")


@pytest.mark.parametrize(
    ("step", "said", "leaves"),
    [
        (Apply(config_map("a")), "apply ConfigMap team/a", False),
        (Apply(config_map("a"), "east"), "apply ConfigMap team/a on cluster east", True),
        (Create(config_map("a")), "create ConfigMap team/a", False),
        (Replace(config_map("a")), "replace ConfigMap team/a", False),
        (DELETE, "delete ConfigMap team/a on cluster east", False),
        (Delete(NAMESPACE, Key("", "a"), "u", "us"), "delete Namespace a", False),
        (LET_GO, "remove our finalizer from the object", False),
        (SetFinalizer(CONFIG_MAP, KEY), "add our finalizer to ConfigMap team/a", False),
        (SetFinalizer(CONFIG_MAP, KEY, present=False), "remove our finalizer from ConfigMap team/a", False),
    ],
    ids=str,
)
def test_a_step_says_what_it_does_and_whether_it_leaves_something_behind(
    step: Step,
    said: str,
    leaves: bool,  # noqa: FBT001
) -> None:
    assert str(step) == said
    assert step.creates_external_objects is leaves


HUB, EAST, WEST = Apply(config_map("a")), Apply(config_map("a"), "east"), Apply(config_map("a"), "west")
ADD_FINALIZER, REMOVE_FINALIZER = SetFinalizer(CONFIG_MAP, KEY), SetFinalizer(CONFIG_MAP, KEY, present=False)
TOKEN = RenewToken("east", KEY, 600, KEY, "kubeconfig")
CHART = Uninstall(KEY, "east")


@pytest.mark.parametrize(
    ("steps", "first", "side_by_side", "last"),
    [
        pytest.param((), [], [], [], id="nothing"),
        pytest.param(
            (HUB, REMOVE_FINALIZER), [], [[HUB, REMOVE_FINALIZER]], [], id="the hub's alone need nothing first"
        ),
        pytest.param((EAST, HUB, WEST), [KEEP], [[EAST], [HUB], [WEST]], [], id="a strand for each target"),
        pytest.param((TOKEN, EAST, CHART), [KEEP], [[TOKEN, EAST, CHART]], [], id="what is for one cluster in order"),
        pytest.param(
            (EAST, HUB, ADD_FINALIZER), [KEEP, ADD_FINALIZER], [[EAST], [HUB]], [], id="finalizers before anything else"
        ),
        pytest.param((KEEP, HUB), [KEEP], [[HUB]], [], id="ours, since it is asked for"),
        pytest.param(
            (KEEP, ADD_FINALIZER, EAST), [KEEP, ADD_FINALIZER], [[EAST]], [], id="ours once, for whatever reasons"
        ),
        pytest.param(
            (LET_GO, DELETE, REMOVE_FINALIZER),
            [],
            [[DELETE], [REMOVE_FINALIZER]],
            [LET_GO],
            id="letting go after all else",
        ),
    ],
)
def test_steps_are_carried_out_side_by_side_between_finalizers(
    steps: tuple[Step, ...], first: list[Step], side_by_side: list[list[Step]], last: list[Step]
) -> None:
    assert strands(steps) == ((first,), tuple(side_by_side), (last,))


def test_a_delete_is_for_the_object_that_was_observed() -> None:
    assert delete(config_map("a"), cluster="east") == DELETE


def test_a_type_without_a_row_is_a_mistake_of_ours() -> None:
    with pytest.raises(UnknownTypeError, match="v2 Thing"):
        str(Apply({"apiVersion": "v2", "kind": "Thing", "metadata": {"name": "a"}}))


CHILDREN = st.lists(
    st.builds(
        config_map,
        st.sampled_from("abcdef"),
        owner=st.sampled_from(["us", "them"]),
        deletionTimestamp=st.sampled_from([None, "2026-11-21T12:00:00Z"]),
    ),
    unique_by=lambda child: child["metadata"]["name"],
)


@given(children=CHILDREN, wanted=st.sets(st.sampled_from("abcdef")))
def test_what_goes_is_ours_unwanted_and_not_yet_going(children: list[Manifest], wanted: set[str]) -> None:
    steps = tuple(prune(children, [config_map(name) for name in wanted], owner="us"))
    gone = {step.key for step in steps}

    assert gone == {
        key_of(child)
        for child in children
        if child["metadata"]["labels"][labels.OWNER_UID] == "us"
        and not child["metadata"]["deletionTimestamp"]
        and child["metadata"]["name"] not in wanted
    }
    left = [child for child in children if key_of(child) not in gone]
    assert tuple(prune(left, [config_map(name) for name in wanted], owner="us")) == (), "a fixpoint"
