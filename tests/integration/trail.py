"""What the operator has asked of API servers: by their own audit logs, or by the books of the proxies before them.

    trail = Trail("hub", file, audited)
    trail.news()            # what has been asked since the last look

The operator is known by its user agent: on the local fleet it has the administrator's permissions, as the tests have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import orjson

from localfleet.faultproxy.calls import MUTATING, Call

AGENT = "modelplane-operator"
ALL = "requests of all kinds"
BY_THE_CLOCK = "leases"  # renewed for as long as the operator lives, whatever else it does


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the operator."""

    time: float
    """When it was asked, by the clock on the wall."""
    cluster: str
    verb: str
    what: str
    """The object, or the collection."""

    @property
    def writes(self) -> bool:
        return self.verb in MUTATING

    def __str__(self) -> str:
        return f"{self.verb} {self.what} on {self.cluster}"


Reader = Callable[[str, bytes], Asked | None]
"""For a cluster and a line, the request that it tells of; None when it tells of none that counts."""


def audited(cluster: str, line: bytes) -> Asked | None:
    """A line of an audit log."""
    if AGENT.encode() not in line:  # most are of others: they are not worth parsing
        return None
    event = orjson.loads(line)
    verb, target = event["verb"], event.get("objectRef") or {}
    # A watch is told of when it begins, which is when it costs, and once more when it ends.
    told_now = event["stage"] == ("ResponseStarted" if verb == "watch" else "ResponseComplete")
    if event.get("userAgent") != AGENT or not told_now or target.get("resource") == BY_THE_CLOCK:
        return None
    what = _named(*(target.get(part, "") for part in ("resource", "subresource", "namespace", "name")))
    return Asked(
        datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        cluster,
        verb,
        what if target else event["requestURI"],
    )


def recorded(cluster: str, line: bytes) -> Asked | None:
    """A line of a fault proxy's book, to which nobody but the operator speaks."""
    record = orjson.loads(line)
    call = Call(**record["call"])
    if call.resource == BY_THE_CLOCK:
        return None
    what = _named(call.resource, call.subresource, call.namespace, call.name)
    return Asked(record["time"], cluster, call.verb or call.method.lower(), what if call.resource else call.path)


def _named(resource: str, subresource: str, namespace: str, name: str) -> str:
    kind = f"{resource}/{subresource}" if subresource else resource
    return f"{kind} {'/'.join(filter(None, (namespace, name)))}".rstrip()


class Trail:
    """Follows one file from its present end on, also when it is moved away and begun anew."""

    def __init__(self, cluster: str, path: Path, read: Reader) -> None:
        self._cluster, self._path, self._read = cluster, path, read
        self._file = path.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._rest = b""

    def close(self) -> None:
        self._file.close()

    def news(self) -> list[Asked]:
        """What has been asked since the last look."""
        return [asked for line in self._lines() if (asked := self._read(self._cluster, line))]

    def _lines(self) -> Iterator[bytes]:
        yield from self._whole(self._file)
        if self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
            yield from self._whole(self._file)  # what was written while we looked
            self._file.close()
            self._file = self._path.open("rb")
            yield from self._whole(self._file)

    def _whole(self, file: IO[bytes]) -> Iterator[bytes]:
        """The lines that are there to their end."""
        *lines, self._rest = (self._rest + file.read()).split(b"\n")
        yield from lines


def busiest(asked: Iterable[Asked], seconds: float) -> Iterator[tuple[str, int]]:
    """For everything that was asked, how often at most within so many seconds; all together as well."""
    times: dict[str, list[float]] = {}
    for one in sorted(asked, key=lambda one: one.time):
        for what in (str(one), ALL):
            times.setdefault(what, []).append(one.time)
    for what, found in times.items():
        first, most = 0, 0
        for number, time in enumerate(found):
            while found[first] <= time - seconds:
                first += 1
            most = max(most, number - first + 1)
        yield what, most
