"""The operator's own command, with a timer of its event loop.

`python -m benchmarks.timed_operator run ...` takes what the operator takes. When it ends it writes to $LOOP_TIMES_FILE,
for everything that ran on the loop, its longest turn: its name (a reconcile is named by its object), milliseconds of
CPU (to which others on a busy machine do not add), the calls of functions where $LOOP_COUNTS_CALLS is set, and the
frames that it was in.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from modelplane_operator.__main__ import main

LONG = 0.1  # seconds, after which it is worth knowing where


@dataclass(slots=True)
class _Turn:
    seconds: float = 0.0
    calls: int = 0
    where: str = ""


class LoopTimer:
    """Measures every turn of an event loop."""

    def __init__(self, *, counting: bool) -> None:
        self.longest: dict[str, _Turn] = {}
        self._counting, self._calls = counting, 0
        self._began: float | None = None
        self._where = ""
        self._run = asyncio.Handle._run  # noqa: SLF001 - asyncio tells nobody how long a turn took

    def begin(self) -> None:
        timer, run = self, self._run

        def measured(handle: asyncio.Handle) -> None:
            timer._turn(lambda: run(handle), _name(handle))

        asyncio.Handle._run = measured  # type: ignore[method-assign]  # noqa: SLF001
        if not self._counting:
            threading.Thread(target=self._watch, args=(threading.main_thread().ident,), daemon=True).start()

    def _turn(self, run: Any, name: str) -> None:
        self._calls, self._where = 0, ""
        self._began, begin = time.perf_counter(), time.thread_time()
        if self._counting:
            sys.setprofile(self._count)
        try:
            run()
        finally:
            sys.setprofile(None)
            self._began = None
            turn = _Turn(time.thread_time() - begin, self._calls, self._where)
            known = self.longest.get(name)
            if known is None or (turn.calls, turn.seconds) > (known.calls, known.seconds):
                self.longest[name] = turn

    def _count(self, _: FrameType, event: str, __: Any) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _watch(self, ident: int) -> None:
        while True:
            time.sleep(LONG / 4)
            if (began := self._began) is not None and time.perf_counter() - began > LONG:
                frames = traceback.extract_stack(sys._current_frames()[ident])[-6:]  # noqa: SLF001
                self._where = " < ".join(f"{one.name} {Path(one.filename).name}:{one.lineno}" for one in frames[::-1])

    def longest_turns(self) -> dict[str, tuple[float, int, str]]:
        return {name: (turn.seconds * 1000, turn.calls, turn.where) for name, turn in self.longest.items()}


def _name(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001
    task = getattr(callback, "__self__", None)
    return task.get_name() if isinstance(task, asyncio.Task) else type(task or callback).__name__


if __name__ == "__main__":
    timer = LoopTimer(counting=bool(os.environ.get("LOOP_COUNTS_CALLS")))
    timer.begin()
    try:
        main()
    finally:
        Path(os.environ["LOOP_TIMES_FILE"]).write_text(json.dumps(timer.longest_turns()))
