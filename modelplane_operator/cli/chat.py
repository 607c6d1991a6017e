"""One streamed answer of a model, by the protocol that engines speak."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from modelplane_operator.cli.output import FailedError

CONNECT_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 120.0  # between two pieces
SHOWN: Final = 300  # of what an error says


class ChatError(FailedError):
    """The model gave no answer; the message says what it, or the gateway, said instead."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What came, and when."""

    model: str
    pieces: int
    first: float | None
    last: float


def chat(
    address: str,
    prompt: str,
    *,
    model: str | None,
    key: str | None,
    on_text: Callable[[str], None],
    now: Callable[[], float],
) -> ChatAnswer:
    """Have `on_text` told every piece as it comes; raises ChatError."""
    try:
        return asyncio.run(_chat(address.rstrip("/"), prompt, model, key, on_text, now))
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        raise ChatError(f"{address} gives no answer: {error or type(error).__name__}") from None


async def _chat(
    address: str,
    prompt: str,
    model: str | None,
    key: str | None,
    on_text: Callable[[str], None],
    now: Callable[[], float],
) -> ChatAnswer:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=True) as session:
        chosen = model or await _model(session, address)
        body = {"model": chosen, "stream": True, "messages": [{"role": "user", "content": prompt}]}
        pieces, first = 0, None
        async with session.post(f"{address}/v1/chat/completions", json=body) as answer:
            await _check(answer)
            async for line in answer.content:
                if (piece := _piece(line)) is not None:
                    first = now() if first is None else first
                    pieces += 1
                    on_text(piece)
        return ChatAnswer(chosen, pieces, first, now())


async def _model(session: aiohttp.ClientSession, address: str) -> str:
    async with session.get(f"{address}/v1/models") as answer:
        await _check(answer)
        said: Any = await answer.json(content_type=None)
    models = [str(one.get("id")) for one in said.get("data") or ()]
    if not models:
        raise ChatError(f"{address}/v1/models lists no model: name one by --model")
    return models[0]


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status >= 400:
        said = " ".join((await answer.text()).split())[:SHOWN]
        hint = ": give a key by --key or MODELPLANE_API_KEY" if answer.status == 401 else ""
        raise ChatError(f"{answer.url} answers {answer.status}{hint}{f': {said}' if said else ''}")


def _piece(line: bytes) -> str | None:
    """The text of one server-sent event; None for what carries none."""
    if not line.startswith(b"data:") or (said := line[5:].strip()) == b"[DONE]":
        return None
    choices: list[Any] = json.loads(said).get("choices") or [{}]
    delta: dict[str, str] = choices[0].get("delta") or {}
    return delta.get("content") or None
