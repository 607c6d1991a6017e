"""What a simulated model says: the same for the same pod and request, and naming who said it."""

import hashlib
import re
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from localfleet.engine.pods import Pod

_TOKEN = re.compile(r"\s*\S+")
_QUOTED_WORDS = 20
_REMARKS = (
    "A real model would answer it now; I can only tell how requests travel.",
    "Each one passes the gateway of the hub, and then the gateway of a cluster.",
    "Ask again, and another replica may answer.",
    "The same question gets the same answer from me, word for word.",
    "My words come one by one, as the tokens of a real engine do.",
    "Kubernetes starts, probes and drains me as it would a real engine.",
    "If my cluster is lost, another one answers under the same URL.",
    "I have no weights, so I am ready at once and cost nothing.",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that a model calls, and the JSON that it gives to it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for, whichever dialect it was written in. `model` None: whatever is served.

    With a call, that is the answer, and its tokens are those of the arguments. `tool_choice` is "" where the request
    offers no tools, or wants none called.
    """

    model: str | None
    prompt: str
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    exact_length: bool = False
    call: Call | None = None
    tool_choice: str = ""


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
    start = hashlib.sha256(ask.prompt.encode()).digest()[0] % len(_REMARKS)
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
    settings = pod.settings
    limit = ask.max_tokens
    least = limit if ask.exact_length and limit is not None else settings.output_tokens
    tokens = list(split(_opening(pod, cluster, model, ask.prompt)))
    remarks = cycle(_REMARKS[start:] + _REMARKS[:start])
    while len(tokens) < least:
        tokens += split(f" {next(remarks)}")
    is_cut = limit is not None and (ask.exact_length or limit < len(tokens))
    return Answer(
        id=f"{pod.uid[:8]}-{number}",
        model=model,
        created=int(now),
        tokens=tuple(tokens[:limit] if is_cut else tokens),
        prompt_tokens=len(split(ask.prompt)),
        finish="length" if is_cut else "stop",
    )


def _opening(pod: Pod, cluster: str, model: str, prompt: str) -> str:
    """Return what each answer begins with: the end of the prompt, and which pod answers."""
    words = prompt.strip().rpartition("\n")[2].split()
    quoted = " ".join(words[:_QUOTED_WORDS]) + ("..." if len(words) > _QUOTED_WORDS else "")
    asked = f'You asked "{quoted}". ' if words else ""
    return f"{asked}I am {model}, a simulated model in pod {pod.namespace}/{pod.name} on cluster {cluster}."


def split(text: str) -> tuple[str, ...]:
    """Tokens of a text; a word with the space before it is close enough to what tokenizers do."""
    return tuple(_TOKEN.findall(text))
