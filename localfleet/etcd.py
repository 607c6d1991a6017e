"""What an etcd holds, read and written behind the back of its API server, which learns of it by its watches."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

SECONDS = 30.0
AT_A_TIME = 100  # an etcd takes 128 operations in one transaction


@dataclass(frozen=True, slots=True)
class Etcd:
    """An etcd on loopback."""

    port: int

    def values(self, prefix: str) -> dict[str, bytes]:
        """The keys that begin so, and what they hold."""
        found = self._ask("kv/range", _all(prefix)).get("kvs", [])
        return {base64.b64decode(one["key"]).decode(): base64.b64decode(one.get("value", "")) for one in found}

    def write(self, values: Mapping[str, bytes | None]) -> None:
        """Give keys these values; None deletes one."""
        operations = [_operation(key, value) for key, value in values.items()]
        for start in range(0, len(operations), AT_A_TIME):
            self._ask("kv/txn", {"success": operations[start : start + AT_A_TIME]})

    def delete(self, prefix: str) -> None:
        """Delete every key that begins so."""
        self._ask("kv/deleterange", _all(prefix))

    def size(self) -> int:
        """Bytes on disk, what has been and is not compacted yet among them."""
        return int(self._ask("maintenance/status", {})["dbSize"])

    def _ask(self, verb: str, request: Mapping[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self.port}/v3/{verb}"
        with urllib.request.urlopen(urllib.request.Request(url, orjson.dumps(request)), timeout=SECONDS) as reply:
            return orjson.loads(reply.read())


def _all(prefix: str) -> dict[str, str]:
    """How etcd spells "all that begin with"."""
    return {"key": _encoded(prefix.encode()), "range_end": _encoded((prefix[:-1] + chr(ord(prefix[-1]) + 1)).encode())}


def _operation(key: str, value: bytes | None) -> dict[str, Any]:
    name = _encoded(key.encode())
    return (
        {"requestDeleteRange": {"key": name}}
        if value is None
        else {"requestPut": {"key": name, "value": _encoded(value)}}
    )


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()
