"""Stream one answer of a model, by the protocol of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from modelplane_operator.cli.output import FailedError

CONNECT_SECONDS: Final = 10.0
"""Limit for the TCP connection alone."""
SILENT_SECONDS: Final = 120.0  # seconds between two pieces
MAX_ERROR: Final = 300  # maximum characters of an error that are shown


class ChatError(FailedError):
    """The model did not answer. The message contains the response of the model or the gateway."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The number of pieces of an answer, and the times of the first and the last."""

    model: str
    """Name of the model in the request."""
    pieces: int
    """Number of pieces with text."""
    first: float | None
    """Time of the first piece by the caller's clock, in seconds; None if there was none."""
    last: float
    """Time of the end of the answer."""


def chat(
    address: str,
    prompt: str,
    *,
    model: str | None,
    key: str | None,
    on_text: Callable[[str], None],
    now: Callable[[], float],
) -> ChatAnswer:
    """Stream an answer, and call `on_text` with every piece. Raise ChatError."""
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
    """Stream an answer. Without a model's name, the first one that the address lists is used."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # No limit for the total: a long answer is fine as long as pieces arrive.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=True) as session:
        chosen = model or await _first_model(session, address)
        body = {"model": chosen, "stream": True, "messages": [{"role": "user", "content": prompt}]}
        pieces, first = 0, None
        async with session.post(f"{address}/v1/chat/completions", json=body) as response:
            await _require_success(response)
            async for line in response.content:
                if (piece := _parse_piece(line)) is not None:
                    first = now() if first is None else first
                    pieces += 1
                    on_text(piece)
        return ChatAnswer(chosen, pieces, first, now())


async def _first_model(session: aiohttp.ClientSession, address: str) -> str:
    """Return the first model that the address lists. Raise ChatError if there is none."""
    async with session.get(f"{address}/v1/models") as response:
        await _require_success(response)
        # The media type is not checked, since some engines and proxies send another one.
        parsed: Any = await response.json(content_type=None)
    models = [str(entry.get("id")) for entry in parsed.get("data") or ()]
    if not models:
        raise ChatError(f"{address}/v1/models lists no model: name one by --model")
    return models[0]


async def _require_success(response: aiohttp.ClientResponse) -> None:
    """Raise ChatError for an error response."""
    if response.status >= 400:
        # Error pages can be long HTML; a few words are enough to recognize them.
        excerpt = " ".join((await response.text()).split())[:MAX_ERROR]
        hint = ": give a key by --key or MODELPLANE_API_KEY" if response.status == 401 else ""
        raise ChatError(f"{response.url} answers {response.status}{hint}{f': {excerpt}' if excerpt else ''}")


def _parse_piece(line: bytes) -> str | None:
    """Return the text of a server-sent event; None if it has none."""
    if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
        return None
    # Events without choices, such as the last one with the usage, have no text.
    choices: list[Any] = json.loads(data).get("choices") or [{}]
    delta: dict[str, str] = choices[0].get("delta") or {}
    return delta.get("content") or None
