"""A cloud in memory: resources that take their time, show late, refuse, fail, and are counted.

It tells repeated calls as clouds do: by a token, by a name, or not at all. The time is an argument.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from kubeloop.errors import AlreadyExists, InUse, Invalid, NotFound, ServerFault, TooMany
from modelplane_operator.clouds.resources import ExistingResource, Inventory, Kind
from modelplane_operator.clouds.steps import CloudStep, CreateResource, DeleteResource, UpdateResource

Told = Literal["token", "name", "nothing"]
"""By what a repeated call is told."""
Fault = Literal["refused", "lost", "failed", "throttled"]
"""Refused by a 5xx without effect; the effect without the answer; accepted, and then failed; 429."""


@dataclass
class Thing:
    """A resource that is there."""

    found: ExistingResource
    parameters: Mapping[str, Any]
    token: str
    made: datetime
    ready: datetime
    fails: bool = False
    gone: datetime | None = None
    """When its deletion is over."""


@dataclass
class FakeCloud:
    kinds: Mapping[str, Kind]
    told: Mapping[str, Told]
    now: datetime
    takes: timedelta = timedelta(seconds=30)
    lag: timedelta = timedelta()
    """Until a list shows what is new, or does not show what is gone."""
    things: list[Thing] = field(default_factory=list[Thing])
    made: list[str] = field(default_factory=list[str])
    """The keys of all that was ever made."""
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])
    """What befalls a call, by its number."""
    calls: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, step: CloudStep) -> str:
        """Do it; answers the id of what was made. Raises ApiError."""
        self.calls += 1
        fault = self.faults.get(self.calls)
        if fault == "refused":
            raise ServerFault("503")
        if fault == "throttled":
            raise TooMany("slow down")
        done = self._do(step, fails=fault == "failed")
        if fault == "lost":
            raise ServerFault("the answer was lost")
        return done

    def present(self, key: str) -> list[Thing]:
        """The resources of that key that are there, whether a list shows them or not."""
        return [one for one in self.things if one.found.key == key and not self._is_gone(one)]

    @property
    def left(self) -> list[str]:
        return [one.found.id for one in self.things if not self._is_gone(one)]

    def seen(self) -> Inventory:
        shown = [one for one in self.things if one.made + self.lag <= self.now or one.found.swept]
        return Inventory(
            tuple(self._state(one) for one in shown if one.gone is None or self.now < one.gone + self.lag), self.now
        )

    def add(self, found: ExistingResource) -> None:
        """Something that others have made."""
        self.things.append(Thing(found, {}, "", self.now, self.now))

    def _is_gone(self, thing: Thing) -> bool:
        return thing.gone is not None and thing.gone <= self.now

    def _state(self, thing: Thing) -> ExistingResource:
        if thing.gone is not None:
            return replace(thing.found, state="Deleting")
        if thing.ready > self.now:
            return replace(thing.found, state="Creating")
        return replace(thing.found, state="Failed" if thing.fails else "Ready", live=thing.parameters)

    def _do(self, step: CloudStep, *, fails: bool) -> str:
        match step:
            case CreateResource():
                return self._create(step, fails=fails)
            case UpdateResource(desired=wanted, existing=found, changed=changed):
                thing = self._there(found.id)
                thing.parameters = {**thing.parameters, **{name: wanted.parameters[name] for name in changed}}
            case DeleteResource(existing=found):
                self._delete(self._there(found.id))
        return ""

    def _create(self, step: CreateResource, *, fails: bool) -> str:
        wanted, told = step.desired, self.told[step.desired.kind]
        for one in self.present(wanted.key):
            if told == "token" and one.token == step.token and one.found.owner == step.owner.uid:
                return one.found.id
            if told == "name":
                raise AlreadyExists(f"there is a {wanted.key}")
        for name in _ids(wanted.parameters):
            user = next((one for one in self.things if one.found.id == name), None)
            if user is None or self._state(user).state not in ("Ready", "Updating"):
                raise Invalid(f"{name} is not there")
        number = f"{wanted.kind}-{next(self._numbers)}"
        found = ExistingResource(wanted.key, wanted.kind, number, "Creating", step.owner.uid)
        self.made.append(wanted.key)
        self.things.append(
            Thing(found, dict(wanted.parameters), step.token, self.now, self.now + self.takes, fails=fails)
        )
        return number

    def _delete(self, thing: Thing) -> None:
        for other in self.things:
            uses = thing.found.id in _ids(other.parameters) and not self._is_gone(other)
            if uses and self.kinds[other.found.kind].goes_with != thing.found.kind:
                raise InUse(f"{other.found.id} needs {thing.found.id}")
        if thing.gone is None:
            thing.gone = self.now + self.takes
            for other in self.things:
                if self.kinds[other.found.kind].goes_with == thing.found.kind and other.gone is None:
                    other.gone = thing.gone

    def _there(self, name: str) -> Thing:
        found = next((one for one in self.things if one.found.id == name and not self._is_gone(one)), None)
        if found is None:
            raise NotFound(f"there is no {name}")
        return found


def _ids(value: Any) -> Iterator[str]:
    match value:
        case str() if "-" in value:
            yield value
        case dict():
            for part in value.values():
                yield from _ids(part)
        case list() | tuple():
            for part in value:
                yield from _ids(part)
        case _:
            return
