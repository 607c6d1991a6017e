"""A Helm release as we want it: a chart at a version with values, under a name that stays."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from kubeloop.objects import Key, Manifest

DIGEST = 16  # 64 bits: two wishes in succession, not a birthday party

VERSION_PATTERN: Final = "^[+._~^*<>=|, a-zA-Z0-9][-+._~^*<>=|, a-zA-Z0-9]*$"
"""What the version of a chart may be: a version or a range of them."""


@dataclass(frozen=True, slots=True)
class Release:
    """What Helm is asked for."""

    key: Key
    """Namespace and name."""
    chart: str
    repository: str
    """A Helm repository's URL, or the part of an OCI reference before the chart's name."""
    version: str
    values: Manifest = field(default_factory=dict[str, object])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whose it is."""
    archive: str | None = None
    """What the chart's archive must be, as `sha256:...`, where whoever asks for it says so."""

    @property
    def digest(self) -> str:
        """Differs whenever what is asked for does."""
        archive = [self.archive] if self.archive else []  # else every release would be another than before
        asked = json.dumps([self.repository, self.chart, self.version, self.values, *archive], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()[:DIGEST]


@dataclass(frozen=True, slots=True)
class Component:
    """One chart that is wanted, and the parts that have to be deployed before."""

    name: str
    release: Release
    after: tuple[str, ...] = ()
    needed: bool = field(default=True)
    """Whether no model can be served without it."""


Verb = Literal["install", "rollback", "uninstall"]


@dataclass(frozen=True, slots=True)
class Run:
    """The latest run for a release."""

    verb: Verb
    began: datetime
    digest: str = ""
    """Of the release that was to be installed."""
    ended: datetime | None = None
    error: str = ""
    """Why it failed; empty when it did not."""
    failures: int = 0
    """How often in a row that has failed: the same verb, for the same digest."""


PENDING: Final = frozenset({"pending-install", "pending-upgrade", "pending-rollback"})
UNDECIDED: Final = PENDING | {"uninstalling"}
"""Helm is at work, or was when it ended without saying so."""
ARCHIVE: Final = "chart archive "
"""Begins the description of a revision that we have had installed; then comes the archive's digest."""

_ARCHIVED = re.compile(f"{ARCHIVE}(sha256:[0-9a-f]{{64}})")  # the cluster may say anything


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a release, as its Secret's metadata tells it."""

    release: Key
    number: int
    status: str
    secret: Key
    uid: str
    version: str
    """The Secret's resourceVersion."""
    modified: float
    """When Helm last wrote it, in seconds since 1970."""
    digest: str = ""
    """Of the `Release` that Helm was asked for; empty when it was not asked by us."""
    owner: str = ""
    interrupted: bool = False
    """Whether it counts as failed only because nobody knows how it ended."""


@dataclass(frozen=True, slots=True)
class RevisionContent:
    """What a revision holds, as its Secret's payload tells it."""

    chart: str
    version: str
    values: Manifest
    description: str
    """What became of it, in Helm's words."""

    @property
    def archive(self) -> str:
        """The digest of the chart's archive, as far as it is known."""
        found = _ARCHIVED.fullmatch(self.description)
        return found[1] if found else ""
