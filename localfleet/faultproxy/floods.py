"""What a hostile or broken API server may say: answers without end, and answers that are none."""

import asyncio
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import orjson
from aiohttp import web

from localfleet.faultproxy.calls import Call

BLOCK = 64 * 1024
FILLING = b"x" * BLOCK
GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Torrent:
    """An answer: its body goes on for as long as somebody reads it, block by block, `every` so many seconds."""

    body: Iterable[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    every: float = 0.0


def _inflated(_: Call) -> Torrent:
    """A thousand times as long as it seems."""

    def body() -> Iterator[bytes]:
        packing = zlib.compressobj(wbits=GZIP)
        yield packing.compress(b'{"apiVersion": "') + packing.flush(zlib.Z_SYNC_FLUSH)
        while True:
            yield packing.compress(FILLING * 16) + packing.flush(zlib.Z_SYNC_FLUSH)

    return Torrent(body(), headers={"Content-Encoding": "gzip"})


def _endless(_: Call) -> Torrent:
    """One string, in one line."""
    return Torrent(itertools.chain([b'{"apiVersion": "'], itertools.repeat(FILLING)))


def _refusal(_: Call) -> Torrent:
    """A failure that is explained at length."""
    return Torrent(itertools.repeat(FILLING), status=500)


def _pages(call: Call) -> Torrent:
    """A page, and always another one after it."""
    number = int(_asked(call, "continue") or "0") + 1
    return Torrent([orjson.dumps(_page(f"{number}"))])


def _circle(call: Call) -> Torrent:
    """A page, and after it the same one."""
    return Torrent([orjson.dumps(_page("again"))])


def _crowd(call: Call) -> Torrent:
    """Pages of many small objects, and always another one after it."""
    number = int(_asked(call, "continue") or "0") + 1
    items = [_object(call, f"crowd-{number}-{n}") for n in range(2000)]
    return Torrent([orjson.dumps(_page(f"{number}", *items))])


def _values(call: Call) -> Torrent:
    """Nothing but empty objects, each of which takes many times its length when it is read."""
    begin, end = b'{"metadata": {"resourceVersion": "1"}, "items": [{}', b"]}"
    if call.verb == "watch":
        begin, end = b'{"type": "ADDED", "object": {"metadata": {}, "x": [{}', b"]}}\n"
    return Torrent([begin, *([b",{}" * (BLOCK // 3)] * 12), end])


def _nested(_: Call) -> Torrent:
    return Torrent([b"[" * BLOCK, b"]" * BLOCK, b"\n"])


def _no_object(_: Call) -> Torrent:
    return Torrent([b'["no", "object"]\n'])


def _no_items(call: Call) -> Torrent:
    """A list of what is no object, an event about what is none."""
    said: Mapping[str, Any] = {"type": "ADDED", "object": "text"} if call.verb == "watch" else _page("", "text")
    return Torrent([orjson.dumps(said) + b"\n"])


def _no_metadata(call: Call) -> Torrent:
    said: Mapping[str, Any] = {"type": "ADDED", "object": {}} if call.verb == "watch" else _page("", {"spec": {}})
    return Torrent([orjson.dumps(said) + b"\n"])


def _no_type(_: Call) -> Torrent:
    """An event whose type is none, and no string either."""
    return Torrent([orjson.dumps({"type": [], "object": {"metadata": {"resourceVersion": "1"}}}) + b"\n"])


def _error(_: Call) -> Torrent:
    """A failure of which much is told, nested deeper than anybody writes."""
    details = b"[" * 500 + b"]" * 500
    return Torrent([b'{"type": "ERROR", "object": {"code": [], "message": "no", "details": ' + details + b"}}\n"])


def _headers(_: Call) -> Torrent:
    return Torrent([b"{}"], headers={"X-Flood": "x" * BLOCK})


def _drip(_: Call) -> Torrent:
    """A byte now and then, so that it never falls silent."""
    return Torrent(itertools.repeat(b"1"), every=0.05)


def _flipping(call: Call) -> Torrent:
    """A watch of one object that changes without end."""
    return Torrent(_events(call, lambda _: "flipping"))


def _births(call: Call) -> Torrent:
    """A watch of more and more objects."""
    return Torrent(_events(call, lambda number: f"born-{number}"))


FLOODS: Mapping[str, Callable[[Call], Torrent]] = {
    "inflated": _inflated,
    "endless": _endless,
    "refusal": _refusal,
    "pages": _pages,
    "circle": _circle,
    "crowd": _crowd,
    "values": _values,
    "nested": _nested,
    "no object": _no_object,
    "no items": _no_items,
    "no metadata": _no_metadata,
    "no type": _no_type,
    "error": _error,
    "headers": _headers,
    "drip": _drip,
    "flipping": _flipping,
    "births": _births,
}


async def flood(request: web.BaseRequest, call: Call, how: str) -> web.StreamResponse:
    """Answer a call in that way, for as long as the caller listens."""
    torrent = FLOODS[how](call)
    headers = {"Content-Type": "application/json", **torrent.headers}
    response = web.StreamResponse(status=torrent.status, headers=headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        for block in torrent.body:
            await response.write(block)
            await asyncio.sleep(torrent.every)
        await response.write_eof()
    except ConnectionError:  # the caller has heard enough
        pass
    return response


def _asked(call: Call, name: str) -> str:
    return parse_qs(call.query).get(name, [""])[0]


def _page(token: str, *items: Any) -> Mapping[str, Any]:
    return {"metadata": {"resourceVersion": "1", "continue": token}, "items": items}


def _events(call: Call, name: Callable[[int], str]) -> Iterator[bytes]:
    """Fifty in a block. Their versions go on from the one that the watch begins at."""
    begin = int(_asked(call, "resourceVersion") or "0")
    for block in itertools.count():
        numbers = range(block * 50, (block + 1) * 50)
        objects = (_object(call, name(number), version=begin + number + 1) for number in numbers)
        yield b"".join(orjson.dumps({"type": "MODIFIED", "object": one}) + b"\n" for one in objects)


def _object(call: Call, name: str, *, version: int = 1) -> Mapping[str, Any]:
    """An object that the call asks for, by what it selects."""
    wanted = _asked(call, "labelSelector")
    labels = {wanted: "flood"} if wanted and "=" not in wanted else {}
    metadata = {"name": name, "namespace": call.namespace or "default", "uid": name, "labels": labels}
    content = {"spec": {}, "status": {"observed": version, "filling": "x" * 500}}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, **content}
