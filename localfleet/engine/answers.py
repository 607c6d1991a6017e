"""What a simulated model says: the same for the same pod and request, and naming who said it."""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from localfleet.engine.pods import Pod

_TOKEN = re.compile(r"\s*\S+")
_WORDS = (
    "every",
    "token",
    "finds",
    "its",
    "way",
    "home",
    "while",
    "quiet",
    "clusters",
    "hum",
    "beneath",
    "the",
    "load",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that a model calls, and the JSON that it gives to it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for, whichever dialect it was written in. `model` None: whatever is served.

    With a call, that is the answer, and its tokens are those of the arguments.
    """

    model: str | None
    prompt: str
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    exact_length: bool = False
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and why it ends after them."""

    id: str
    model: str
    created: int
    tokens: tuple[str, ...]
    prompt_tokens: int
    finish: Literal["stop", "length"]
    call: Call | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.tokens)


def answer(pod: Pod, cluster: str, ask: Ask, *, number: int, now: float) -> Answer:
    """The answer of this pod's engine to its `number`-th request."""
    digest = hashlib.sha256(ask.prompt.encode()).digest()
    model = ask.model or pod.models[0]
    if ask.call is not None:
        return Answer(
            id=f"{pod.uid[:8]}-{number}",
            model=model,
            created=int(now),
            tokens=split(ask.call.arguments),
            prompt_tokens=len(split(ask.prompt)),
            finish="stop",
            call=ask.call,
        )
    introduction = (
        f"This is {model} in pod {pod.namespace}/{pod.name} on cluster {cluster}, answering {digest.hex()[:8]}:"
    )
    tokens = split(introduction)
    natural = max(pod.settings.output_tokens, len(tokens))
    limit = ask.max_tokens if ask.max_tokens is not None else natural
    length = limit if ask.exact_length else min(natural, limit)
    filler = (" " + _WORDS[(digest[index % 32] + index) % len(_WORDS)] for index in range(max(0, length - len(tokens))))
    return Answer(
        id=f"{pod.uid[:8]}-{number}",
        model=model,
        created=int(now),
        tokens=(*tokens, *filler)[:length],
        prompt_tokens=len(split(ask.prompt)),
        finish="length" if length == limit and (ask.exact_length or limit < natural) else "stop",
    )


def split(text: str) -> tuple[str, ...]:
    """Tokens of a text; a word with the space before it is close enough to what tokenizers do."""
    return tuple(_TOKEN.findall(text))
