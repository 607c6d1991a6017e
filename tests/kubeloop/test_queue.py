"""The queue: a key once, one run at a time, none lost, and everybody's turn comes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeloop.backoff import Backoff
from kubeloop.queue import Done, Failed, Forgotten, Outcome, Queue, QueuePace
from kubeloop.workers import Serial, Workers
from tests.support import virtual_time

PACE = QueuePace(min_interval=0.0, event_delay=1.0, resync=600.0, backoff=Backoff(first=1.0, longest=60.0))


def place(key: str) -> tuple[str, str]:
    """`namespace/concurrency key/name`."""
    namespace, concurrency_key, _ = key.split("/")
    return namespace, concurrency_key


def queue(*, limit: int = 4, pace: QueuePace = PACE, routine: int = 4) -> Queue[str]:
    return Queue(place, jitter=lambda: 0.5, limit=limit, pace=pace, routine=routine)


def drain(queue: Queue[str], now: float = 0.0) -> list[str]:
    """The keys that may run now, in turn, each gone at once."""
    taken: list[str] = []
    while (key := queue.take(now)) is not None:
        taken.append(key)
        queue.finish(key, Done(), now)
    return taken


def test_a_key_is_there_once_however_often_it_is_added() -> None:
    keys = queue()
    for _ in range(5):
        keys.add("a/x/1", 0.0)

    assert drain(keys) == ["a/x/1"]


def test_namespaces_take_turns() -> None:
    keys = queue()
    for number in range(4):
        keys.add(f"greedy/x/{number}", 0.0)
    keys.add("modest/x/1", 0.0)
    keys.add("small/x/1", 0.0)

    assert drain(keys) == ["greedy/x/0", "modest/x/1", "small/x/1", "greedy/x/1", "greedy/x/2", "greedy/x/3"]


def test_lanes_of_a_namespace_take_turns() -> None:
    keys = queue()
    for number in range(3):
        keys.add(f"a/wide/{number}", 0.0)
    keys.add("a/narrow/1", 0.0)

    assert drain(keys) == ["a/wide/0", "a/narrow/1", "a/wide/1", "a/wide/2"]


def test_news_comes_before_what_is_only_looked_at_again() -> None:
    keys = queue()
    for number in range(3):
        keys.add(f"a/x/{number}", 0.0, is_event=False)
    keys.add("a/x/9", 0.0)
    keys.add("a/x/2", 0.0)
    keys.add("a/x/9", 0.0, is_event=False)

    assert drain(keys) == ["a/x/9", "a/x/2", "a/x/0", "a/x/1"]
    assert len(keys) == 4
    assert keys.depth == 0


def test_a_resync_waits_for_news_and_what_asked_for_its_time_does_not() -> None:
    keys = queue()
    for name, outcome in (("a/x/resynced", Done()), ("a/x/asked", Done(600.0)), ("a/x/failed", Failed(600.0))):
        keys.add(name, 0.0)
        assert keys.take(0.0) == name
        keys.finish(name, outcome, 0.0)

    assert sorted(drain(keys, 700.0)[:2]) == ["a/x/asked", "a/x/failed"]


def test_a_lane_that_hangs_holds_up_only_itself() -> None:
    keys = queue(limit=2)
    for number in range(5):
        keys.add(f"a/hanging/{number}", 0.0)
    keys.add("a/lively/1", 0.0)
    keys.add("b/hanging/1", 0.0)

    assert [keys.take(0.0) for _ in range(4)] == ["a/hanging/0", "b/hanging/1", "a/lively/1", None]


def test_nine_lanes_that_hang_leave_workers_to_others() -> None:
    keys = queue()
    for lane in range(9):
        for number in range(5):
            keys.add(f"a/hanging-{lane}/{number}", 0.0)
    hanging = list(iter(lambda: keys.take(0.0), None))

    keys.add("b/lively/1", 0.0)
    assert keys.take(0.0) == "b/lively/1"
    assert len(hanging) < keys.workers


def test_a_lane_takes_several_workers_while_half_of_them_are_free() -> None:
    keys = queue()
    for number in range(5):
        keys.add(f"a/x/{number}", 0.0)
        keys.add(f"a/y/{number}", 0.0)
        keys.add(f"b/z/{number}", 0.0)

    taken = Counter(place(key)[1] for key in iter(lambda: keys.take(0.0), None) if key)
    assert sum(taken.values()) == keys.workers // 2
    assert min(taken.values()) >= 2


def test_keys_that_wait_for_no_cluster_wait_for_each_other_only_where_workers_are_short() -> None:
    keys = queue(limit=2)
    for number in range(5):
        keys.add(f"a//{number}", 0.0)

    assert [keys.take(0.0) for _ in range(6)] == [*(f"a//{number}" for number in range(5)), None]


def test_what_is_only_looked_at_again_leaves_room_for_news_and_for_other_clusters() -> None:
    keys = queue()
    for number in range(10):
        keys.add(f"a//{number}", 0.0, is_event=False)
        keys.add(f"a/hanging/{number}", 0.0, is_event=False)
        keys.add(f"a/lively/{number}", 0.0, is_event=False)

    began = list(iter(lambda: keys.take(0.0), None))
    assert len(began) == keys.routine
    assert Counter(place(key)[1] for key in began if key)["hanging"] == 1
    keys.add("a/hanging/9", 0.0)
    keys.add("a//new", 0.0)
    assert [keys.take(0.0) for _ in range(3)] == ["a/hanging/9", "a//new", None]
    keys.finish(began[0] or "", Done(), 0.0)
    assert keys.take(0.0) is not None


def test_what_somebody_changed_comes_first_and_keeps_nobody_from_a_turn() -> None:
    keys = queue()
    for number in range(40):
        keys.add(f"a//heard-{number}", 0.0)
        keys.add(f"b//edited-{number}", 0.0, edited=True)
        keys.add(f"a//looked-{number}", 0.0, is_event=False)
    keys.add("a//heard-30", 0.0, edited=True)

    began = [keys.take(0.0) or "" for _ in range(48)]
    assert "a//heard-30" in began[:3], "what it had heard before does not hold it up"
    assert sum("edited" in key for key in began) <= 24, "one after another overtakes once for each of the others' turns"
    assert sum("looked" in key for key in began) == 3


def test_what_comes_first_overtakes_those_that_would_wait_for_a_lock() -> None:
    order: list[str] = []
    serial = Serial()

    async def decide(key: str) -> Outcome:
        async with serial:
            await asyncio.sleep(1.0)
            order.append(key)
        await asyncio.sleep(10.0)  # to tell of it, it keeps nobody waiting
        return Done()

    async def both() -> None:
        workers = Workers(queue(limit=16), decide, count=16, serial=serial)
        async with asyncio.TaskGroup() as group:
            group.create_task(workers.run())
            await asyncio.sleep(0)
            for number in range(10):
                workers.add(f"a//{number}")
            await asyncio.sleep(2.5)
            workers.add("a//new", edited=True)
            await asyncio.sleep(30.0)
            workers.stop()

    virtual_time.run(both())
    assert order.index("a//new") <= 4
    assert len(order) == 11


def test_news_during_a_run_bring_one_more_run() -> None:
    keys = queue(pace=QueuePace(min_interval=0.5))
    keys.add("a/x/1", 0.0)
    assert keys.take(0.0) == "a/x/1"
    for _ in range(3):
        keys.add("a/x/1", 1.0)
    assert keys.take(1.0) is None, "it runs"
    keys.finish("a/x/1", Done(), 2.0)

    assert keys.take(2.4) is None, "it rests, so that a burst is one run"
    assert keys.take(2.5) == "a/x/1"


def test_a_failure_after_what_was_forgiven_is_the_first() -> None:
    keys, now = queue(), 0.0
    keys.add("a/x/1", now)
    for _ in range(8):
        assert keys.take(now) == "a/x/1"
        keys.finish("a/x/1", Failed(), now)
        now = keys.next_due() or now
    assert keys.take(now) == "a/x/1"
    keys.forgive("a/x/1")
    keys.forgive("a/x/unknown")
    keys.finish("a/x/1", Failed(), now)

    assert keys.next_due() == now + 0.75


def test_failures_wait_longer_and_longer_and_a_success_forgives() -> None:
    keys, waits, now = queue(), [], 0.0
    keys.add("a/x/1", now)
    for outcome in [*[Failed()] * 8, Done(requeue_after=5.0), Failed()]:
        assert keys.take(now) == "a/x/1"
        keys.finish("a/x/1", outcome, now)
        due = keys.next_due()
        assert due is not None
        waits.append(due - now)
        now = due

    assert waits == [0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 45.0, 45.0, 5.0, 0.75]


def test_news_of_a_failing_key_bring_it_forward_but_not_at_once() -> None:
    keys = queue()
    keys.add("a/x/1", 0.0)
    for _ in range(7):
        now = keys.next_due() or 0.0
        keys.take(now)
        keys.finish("a/x/1", Failed(), now)
    keys.add("a/x/1", now + 0.1)

    assert keys.take(now + 0.9) is None
    assert keys.take(now + 1.0) == "a/x/1"


def test_an_edit_goes_through_whatever_pause_a_server_asks_for() -> None:
    keys = queue()
    for edited_while_it_runs in (False, True):
        keys.add("a/x/1", 0.0)
        keys.take(0.0)
        if edited_while_it_runs:
            keys.add("a/x/1", 0.0)
            keys.add("a/x/1", 0.0, edited=True)
        keys.finish("a/x/1", Failed(at_least=60.0), 0.0)
        keys.add("a/x/1", 0.1, edited=not edited_while_it_runs)

        assert keys.take(0.7) is None, "but not at once"
        assert keys.take(1.0) == "a/x/1"
        keys.finish("a/x/1", Forgotten(), 1.0)


def test_a_server_that_asks_for_a_pause_gets_it_whatever_the_news() -> None:
    keys = queue()
    keys.add("a/x/1", 0.0)
    keys.take(0.0)
    keys.finish("a/x/1", Failed(at_least=30.0), 0.0)
    keys.add("a/x/1", 1.0)

    assert keys.take(29.0) is None
    assert keys.take(40.0) == "a/x/1"


def test_all_is_looked_at_again_in_the_end() -> None:
    keys = queue()
    keys.add("a/x/1", 0.0)
    drain(keys)

    assert keys.take(599.0) is None
    assert keys.take(600.0) == "a/x/1"


def test_a_forgotten_key_is_gone_unless_it_was_added_while_it_ran() -> None:
    keys = queue()
    for key in ("a/x/1", "a/x/2"):
        keys.add(key, 0.0)
        keys.take(0.0)
    keys.add("a/x/2", 0.5)
    keys.finish("a/x/1", Forgotten(), 1.0)
    keys.finish("a/x/2", Forgotten(), 1.0)

    assert drain(keys, 10_000.0) == ["a/x/2"]
    assert len(keys) == 1


KEYS = st.builds("{}/{}/{}".format, st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from("123"))
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, st.none() | st.floats(0, 100)),
    st.builds(Failed, st.none() | st.floats(0, 100)),
    st.just(Forgotten()),
)
LIMIT = 2


class Turns(RuleBasedStateMachine):
    """Keys are added, taken and done in any order while time goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue(limit=LIMIT)
        self.now = 0.0
        self.running: set[str] = set()
        self.owed: dict[str, float] = {}
        """Keys with news that no run has begun after, and since when."""

    @rule(key=KEYS, news=st.booleans(), edited=st.booleans())
    def add(self, key: str, *, news: bool, edited: bool) -> None:
        self.queue.add(key, self.now, is_event=news, edited=edited)
        self.owed.setdefault(key, self.now)

    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now)
        if key is not None:
            assert key not in self.running, "one run at a time"
            self.running.add(key)
            self.owed.pop(key, None)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=OUTCOMES)
    def done(self, data: st.DataObject, outcome: Outcome) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(key)
        self.queue.finish(key, outcome, self.now)

    @rule(seconds=st.floats(0, 1000))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def no_lane_is_over_its_limit(self) -> None:
        assert max(Counter(place(key)[1] for key in self.running).values(), default=0) <= LIMIT
        assert self.queue.running == len(self.running)

    def teardown(self) -> None:
        for key in sorted(self.running):
            self.queue.finish(key, Done(), self.now)
        self.now += 1_000.0  # longer than any pause that was asked for
        while (key := self.queue.take(self.now)) is not None:
            self.owed.pop(key, None)
            self.queue.finish(key, Forgotten(), self.now)

        assert not self.owed, "news that nobody ever looked at"


TestTurns = Turns.TestCase


async def _work(
    keys: list[str], reconcile: Callable[[str], asyncio.Future[Outcome]] | Callable[..., object], *, seconds: float
) -> None:
    workers = Workers(queue(), reconcile, count=3)  # pyright: ignore[reportArgumentType]
    async with asyncio.TaskGroup() as group:
        group.create_task(workers.run())
        for key in keys:
            workers.add(key)
        await asyncio.sleep(seconds)
        workers.stop()


def test_a_run_that_is_cancelled_by_what_it_waits_for_is_tried_again() -> None:
    runs = Counter[str]()

    async def reconcile(key: str) -> Outcome:
        runs[key] += 1
        if runs[key] == 1:
            raise asyncio.CancelledError
        return Done()

    virtual_time.run(_work(["a/x/1"], reconcile, seconds=100.0))
    assert runs == {"a/x/1": 2}


def test_workers_run_so_many_at_once_and_all_of_them() -> None:
    running: set[str] = set()
    most, runs = 0, Counter[str]()

    async def reconcile(key: str) -> Outcome:
        nonlocal most
        running.add(key)
        most = max(most, len(running))
        await asyncio.sleep(1.0)
        running.remove(key)
        runs[key] += 1
        return Done()

    keys = [f"{namespace}/{concurrency_key}/{n}" for namespace in "ab" for concurrency_key in "xyz" for n in range(5)]
    virtual_time.run(_work(keys, reconcile, seconds=100.0))

    assert most == 3
    assert runs == Counter(keys)


def test_kinds_take_turns_at_what_needs_no_waiting() -> None:
    """Whoever decides about one object at a time is not left behind by those who run many."""
    order: list[str] = []
    turn = asyncio.Lock()

    async def decide(key: str) -> Outcome:
        async with turn:
            await asyncio.sleep(0)
            order.append(key)
        return Done()

    async def look(key: str) -> Outcome:
        order.append(key)
        return Done()

    async def both() -> None:
        runners = [Workers(queue(limit=16), work, count=16) for work in (decide, look)]
        async with asyncio.TaskGroup() as group:
            for runner, kind in zip(runners, "dl", strict=True):
                for number in range(100):
                    runner.add(f"{kind}/x/{number}")
                group.create_task(runner.run())
            await asyncio.sleep(1.0)
            for runner in runners:
                runner.stop()

    virtual_time.run(both())

    assert len(order) == 200
    assert Counter(key[0] for key in order[:100])["d"] >= 25


def test_what_came_before_the_work_began_waits_for_news() -> None:
    order: list[str] = []

    async def reconcile(key: str) -> Outcome:
        order.append(key)
        await asyncio.sleep(1.0)
        return Done()

    async def run() -> None:
        workers = Workers(queue(), reconcile, count=1)
        for number in range(3):
            workers.add(f"a/x/{number}")
        async with asyncio.TaskGroup() as group:
            group.create_task(workers.run())
            await asyncio.sleep(0.5)
            workers.add("a/x/new")
            await asyncio.sleep(10.0)
            workers.stop()

    virtual_time.run(run())

    assert order == ["a/x/0", "a/x/new", "a/x/1", "a/x/2"]


def test_a_failing_key_runs_seldom_and_the_others_as_if_it_were_not_there() -> None:
    runs: defaultdict[str, list[float]] = defaultdict(list)

    async def reconcile(key: str) -> Outcome:
        runs[key].append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        return Failed() if key == "a/x/poison" else Done(requeue_after=10.0)

    virtual_time.run(_work(["a/x/poison", "a/x/good"], reconcile, seconds=300.0))

    assert len(runs["a/x/poison"]) == 12
    assert len(runs["a/x/good"]) == 30


def test_a_stop_begins_nothing_more_however_much_is_due() -> None:
    runs = 0

    async def reconcile(_: str) -> Outcome:
        nonlocal runs
        runs += 1
        if runs == 3:
            workers.stop()
        return Done()

    async def run() -> None:
        for number in range(100):
            workers.add(f"a/x/{number}")
        await workers.run()

    workers = Workers(queue(), reconcile, count=3)
    virtual_time.run(run())

    assert runs <= 4


def test_a_stop_waits_for_what_runs() -> None:
    ended: list[str] = []

    async def reconcile(key: str) -> Outcome:
        await asyncio.sleep(5.0)
        ended.append(key)
        return Done()

    virtual_time.run(_work(["a/x/1"], reconcile, seconds=1.0))

    assert ended == ["a/x/1"]


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_a_delay_is_spread_over_the_upper_half_and_never_under_what_was_asked_for(chance: float) -> None:
    backoff = Backoff(first=2.0, longest=10.0)

    assert backoff.delay(0, chance) == 0.0
    assert 1.0 <= backoff.delay(1, chance) <= 2.0
    assert 5.0 <= backoff.delay(1000, chance) <= 10.0
    assert backoff.delay(1, chance, at_least=60.0) >= 60.0


def test_who_was_told_when_to_come_again_does_not_wait_much_longer() -> None:
    backoff = Backoff(first=0.25, longest=300.0)

    assert 5.0 <= backoff.delay(1000, 0.0, at_least=1.0) <= backoff.delay(1000, 1.0, at_least=1.0) <= 10.0
