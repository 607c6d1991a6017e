"""On which object a process died twice, told exactly, and forgotten when it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from kubeloop.objects import Key
from kubeloop.quarantine import SLOT_BYTES, SLOTS, Record, Subject, open_record, subject


def one(name: str, state: str = "1") -> Subject:
    return Subject("ModelDeployment", Key("team", name), state)


NEVER_ENDED = list[object]()
"""What a killed process leaves as it is; here the garbage collector would end it in good order."""


async def begin(record: Record, each: Subject) -> None:
    """Begin a reconcile that never ends."""
    NEVER_ENDED.append(open_ := AsyncExitStack())
    await open_.enter_async_context(record.record_run(each))


@asynccontextmanager
async def process(folder: Path, *working: Subject) -> AsyncIterator[Record]:
    """A process that is killed while it works at these."""
    record = open_record(folder)
    begun = record.__enter__()
    NEVER_ENDED.append(record)
    for each in working:
        await begin(begun, each)
    yield begun


async def died(folder: Path, *working: Subject) -> Record:
    async with process(folder, *working) as record:
        return record


async def test_an_object_on_which_the_process_died_twice_is_left_alone(tmp_path: Path) -> None:
    for _ in range(2):
        assert not (await died(tmp_path, one("deadly"))).holds(one("deadly"))

    with open_record(tmp_path) as record:
        assert record.holds(one("deadly"))
        assert record.count("ModelDeployment") == 1
        assert not record.holds(one("another"))
    with open_record(tmp_path) as record:
        assert record.holds(one("deadly")), "for as long as nobody changes it"
        assert not record.holds(one("deadly", "2"))
        assert record.count("ModelDeployment") == 0
    with open_record(tmp_path) as record:
        assert not record.holds(one("deadly")), "then it has no past"


async def test_of_several_that_were_under_way_only_the_deadly_one_is_named(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(16)]
    await died(tmp_path, *map(one, names))

    # They run one at a time now: those before the deadly one end, and with it dies the process.
    async with process(tmp_path) as record:
        deadly = names.index("n7")
        for name in names[:deadly]:
            async with record.record_run(one(name)):
                pass
        await begin(record, one("n7"))
        await begin(record, one("new"))
        waits = asyncio.ensure_future(begin(record, one("n8")))
        await asyncio.sleep(0)
        assert not waits.done(), "one suspect at a time"
        waits.cancel()
        with suppress(asyncio.CancelledError):
            await waits

    with open_record(tmp_path) as record:
        assert [name for name in [*names, "new"] if record.holds(one(name))] == ["n7"]


async def test_a_slow_suspect_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeloop.quarantine.ALONE_SECONDS", 0.01)
    await died(tmp_path, one("slow"), one("next"))

    with open_record(tmp_path) as record:
        async with record.record_run(one("slow")), record.record_run(one("next")):
            pass
        async with record.record_run(one("slow")), record.record_run(one("next")):
            pass


async def test_a_process_that_ends_in_good_order_accuses_nobody(tmp_path: Path) -> None:
    for _ in range(3):
        with open_record(tmp_path) as record:
            async with record.record_run(one("a")):
                pass
            with suppress(RuntimeError):
                async with record.record_run(one("b")):
                    raise RuntimeError
        assert set((tmp_path / "working").read_bytes()) == {0}

    with open_record(tmp_path) as record:
        assert not record.holds(one("a"))


@pytest.mark.parametrize("file", ["working", "deaths"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"{}", b"[1]", b"[[1, 2], 3]", b"\xff" * SLOT_BYTES * SLOTS])
def test_a_record_that_nobody_can_read_is_none(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)

    with open_record(tmp_path) as record:
        assert not record.holds(one("a"))


async def test_more_at_once_than_there_are_slots_are_just_not_noted(tmp_path: Path) -> None:
    with open_record(tmp_path) as record:
        async with AsyncExitStack() as open_:
            for number in range(SLOTS + 10):
                await open_.enter_async_context(record.record_run(one(f"n{number}")))


def test_the_longest_names_fit_into_a_slot_and_any_change_is_another_state() -> None:
    metadata = {"uid": "u", "generation": 1, "annotations": {"other": "x"}}
    states = [
        subject("ModelDeployment", Key("n" * 63, "m" * 253), {"metadata": {**metadata, **more}}).state
        for more in (
            {},
            {"annotations": {"other": "y"}},
            {"generation": 2},
            {"uid": "v"},
            {"deletionTimestamp": "2026-11-22T16:00:00Z"},
            {"annotations": {"modelplane.ai/retry": "1"}},
        )
    ]

    assert states[0] == states[1], "what others annotate changes nothing"
    assert len(set(states)) == 5
