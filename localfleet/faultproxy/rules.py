"""Which requests a rule is about, and what happens to them; values on both sides of the control socket."""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias, cast

from localfleet.faultproxy.calls import Call
from localfleet.faultproxy.floods import FLOODS


class RuleError(ValueError):
    """A rule that was sent means nothing."""


class When(StrEnum):
    """On which side of its effect a call is hit: before it is forwarded, or after the API server's answer came."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Match:
    """The calls a rule is about: every field that is given must hold. `apply` is a verb too: server-side apply.

    `mutating_call` is the number of the call among all counted mutating calls; `nth` and `every` count the calls that
    this rule's other fields match; `probability` is drawn last.
    """

    verbs: tuple[str, ...] = ()
    group: str | None = None
    resource: str | None = None
    subresource: str | None = None
    namespace: str | None = None
    name: str | None = None
    user_agent: str | None = None
    mutating: bool | None = None
    mutating_call: int | None = None
    nth: int | None = None
    every: int | None = None
    probability: float | None = None

    def concerns(self, call: Call, number: int | None) -> bool:
        """Whether a call is one of those, before any counting."""
        wanted = (self.group, self.resource, self.subresource, self.namespace, self.name)
        actual = (call.group, call.resource, call.subresource, call.namespace, call.name)
        return (
            all(want is None or want == got for want, got in zip(wanted, actual, strict=True))
            and (not self.verbs or call.verb in self.verbs or (call.apply and "apply" in self.verbs))
            and (self.user_agent is None or self.user_agent in call.user_agent)
            and (self.mutating is None or self.mutating == call.mutating)
            and (self.mutating_call is None or self.mutating_call == number)
        )


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection; the API server never hears of the call."""


@dataclass(frozen=True, slots=True)
class LoseReply:
    """Forward the call, wait for the answer, and close the connection instead of passing it on."""


@dataclass(frozen=True, slots=True)
class Reset:
    """As Drop or LoseReply, but with a TCP reset."""

    when: When = When.BEFORE


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before forwarding, or before passing the answer on."""

    seconds: float
    when: When = When.BEFORE


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with a Status object of this code; AFTER: although the call had its effect."""

    status: int
    retry_after: int | None = None
    message: str = "the fault proxy was told to answer this"
    when: When = When.BEFORE


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer for that long (None: until the rule is removed), then as if nothing had been."""

    seconds: float | None = None
    when: When = When.BEFORE


@dataclass(frozen=True, slots=True)
class Slow:
    """Pass the answer's body on at that pace."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Pass so many bytes of the answer's body on, then close the connection."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Flood:
    """Answer what no API server says, often without end (`FLOODS` in floods.py); the API server hears of nothing."""

    how: str

    def __post_init__(self) -> None:
        if self.how not in FLOODS:
            raise RuleError(f"there is no flood {self.how!r}; floods are {', '.join(FLOODS)}")


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to a process (SIGKILL: the crash matrix), then drop the call or its answer."""

    pid: int
    signal: int = 9
    when: When = When.BEFORE


@dataclass(frozen=True, slots=True)
class CloseWatch:
    """End watch streams that have been open that long."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HoldEvents:
    """Keep watch events back for that long after the first (None: until the rule is removed), then release them."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OmitEvents:
    """Swallow watch events of these types (none given: all but bookmarks) about objects of this name (None: all)."""

    types: tuple[str, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class InjectGone:
    """Tell watches that their resourceVersion is too old (an ERROR event, 410), and end them."""


RequestAction: TypeAlias = Drop | LoseReply | Reset | Delay | Answer | Hang | Slow | Truncate | Flood | Signal
WatchAction: TypeAlias = CloseWatch | HoldEvents | OmitEvents | InjectGone
Action: TypeAlias = RequestAction | WatchAction

WATCH_ACTIONS = (CloseWatch, HoldEvents, OmitEvents, InjectGone)
ACTIONS: Mapping[str, type[Action]] = {
    kind.__name__: kind
    for kind in (Drop, LoseReply, Reset, Delay, Answer, Hang, Slow, Truncate, Flood, Signal, *WATCH_ACTIONS)
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to which calls. It fires `times` times; None: until it is removed."""

    match: Match
    action: Action
    times: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The rule as the control API takes it."""
        action = {"kind": type(self.action).__name__, **asdict(self.action)}
        return {"match": asdict(self.match), "action": action, "times": self.times}


@dataclass(slots=True)
class ActiveRule:
    """A rule in force: how often it was asked about calls that concern it, and how often it fired."""

    id: int
    rule: Rule
    asked: int = 0
    fired: int = 0

    @property
    def spent(self) -> bool:
        """Whether it has fired as often as it may."""
        return self.rule.times is not None and self.fired >= self.rule.times

    def to_json(self) -> dict[str, Any]:
        """The rule and its counts."""
        return {"id": self.id, "asked": self.asked, "fired": self.fired, **self.rule.to_json()}


@dataclass(slots=True)
class Rules:
    """The rules in force, in the order they were added, and the seed of their chances."""

    seed: int
    active: dict[int, ActiveRule] = field(default_factory=dict[int, ActiveRule])
    added: int = 0

    def add(self, rule: Rule) -> ActiveRule:
        """Put a rule in force."""
        self.added += 1
        active = self.active[self.added] = ActiveRule(self.added, rule)
        return active

    def fire(self, call: Call, number: int | None) -> list[ActiveRule]:
        """The request rules that hit this call, with their counts moved on."""
        return [
            active
            for active in self.active.values()
            if not isinstance(active.rule.action, WATCH_ACTIONS) and self._hits(active, call, number)
        ]

    def for_watch(self, call: Call) -> list[ActiveRule]:
        """The watch rules that concern a stream and are not spent; the stream moves their counts on."""
        return [
            active
            for active in self.active.values()
            if isinstance(active.rule.action, WATCH_ACTIONS)
            and not active.spent
            and active.rule.match.concerns(call, None)
        ]

    def _hits(self, active: ActiveRule, call: Call, number: int | None) -> bool:
        match = active.rule.match
        if active.spent or not match.concerns(call, number):
            return False
        active.asked += 1
        hit = (
            (match.nth is None or active.asked == match.nth)
            and (match.every is None or active.asked % match.every == 0)
            and (match.probability is None or self._chance(active) < match.probability)
        )
        active.fired += hit
        return hit

    def _chance(self, active: ActiveRule) -> float:
        # by the rule's place and count, not by a shared stream: another rule's calls do not shift this one's
        return random.Random(f"{self.seed}/{active.id}/{active.asked}").random()  # noqa: S311 - to be replayed


def read_rule(body: Mapping[str, Any]) -> Rule:
    """The rule that a control request describes; raises RuleError."""
    try:
        action = dict(body["action"])
        kind = ACTIONS[action.pop("kind")]
        return Rule(_built(Match, body.get("match") or {}), _built(kind, action), times=body.get("times"))
    except KeyError as error:
        raise RuleError(f"no such action, or none: {error}; actions are {', '.join(ACTIONS)}") from error
    except (TypeError, ValueError) as error:
        raise RuleError(str(error)) from error


def _built(kind: Any, values: Mapping[str, Any]) -> Any:
    known = {entry.name for entry in fields(kind)}
    if strange := values.keys() - known:
        raise RuleError(f"{kind.__name__} has no {', '.join(sorted(strange))}; it has {', '.join(sorted(known))}")
    lists = {name: tuple(cast(list[Any], value)) for name, value in values.items() if isinstance(value, list)}
    plain = {**values, **lists}
    if "when" in plain:
        plain["when"] = When(plain["when"])
    return kind(**plain)
