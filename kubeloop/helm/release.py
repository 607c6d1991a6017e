"""Helm releases and revisions as values."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from kubeloop.objects import Key, Manifest

DIGEST = 16  # hex digits; 64 bits suffice to tell successive states of one release apart

VERSION_PATTERN: Final = "^[+._~^*<>=|, a-zA-Z0-9][-+._~^*<>=|, a-zA-Z0-9]*$"
"""The format of a chart's version, or a range of versions."""


@dataclass(frozen=True, slots=True)
class Release:
    """A desired Helm release: a chart at a version, with values, under a stable name."""

    key: Key
    """The namespace and name."""
    chart: str
    repository: str
    """The URL of a Helm repository, or the part of an OCI reference before the chart's name."""
    version: str
    """The version of the chart."""
    values: Manifest = field(default_factory=dict[str, object])
    """The values for the chart."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """The labels that identify the owner."""
    archive: str | None = None
    """The required digest of the chart's archive, as `sha256:...`, or None."""

    @property
    def digest(self) -> str:
        """A digest that differs between any two different releases."""
        archive = [self.archive] if self.archive else []  # left out if empty, to keep digests of earlier versions
        serialized = json.dumps([self.repository, self.chart, self.version, self.values, *archive], sort_keys=True)
        return hashlib.sha256(serialized.encode()).hexdigest()[:DIGEST]


@dataclass(frozen=True, slots=True)
class Component:
    """A desired chart, and the components that have to be deployed before it."""

    name: str
    release: Release
    after: tuple[str, ...] = ()
    needed: bool = field(default=True)
    """True if no model can be served without it."""
    definitions: bool = field(default=False)
    """True if an upgrade of it upgrades the definitions in the `crds/` of its chart, too."""


Verb = Literal["install", "rollback", "uninstall"]


@dataclass(frozen=True, slots=True)
class Run:
    """The latest run for a release."""

    verb: Verb
    began: datetime
    """The time of the start."""
    digest: str = ""
    """The digest of the release to install."""
    ended: datetime | None = None
    """The time of the end; None while it runs."""
    error: str = ""
    """The error of the run; empty if it succeeded or is in progress."""
    failures: int = 0
    """The number of consecutive failures of the same verb for the same digest."""


PENDING: Final = frozenset({"pending-install", "pending-upgrade", "pending-rollback"})
"""The statuses of a release that Helm is changing, or was when it was killed."""
UNDECIDED: Final = PENDING | {"uninstalling"}
"""The statuses of a release on which Helm is working, or was when it ended without a result."""
ARCHIVE: Final = "chart archive "
"""The beginning of the description of our own revisions, followed by the digest of the chart's archive."""

_ARCHIVED = re.compile(f"{ARCHIVE}(sha256:[0-9a-f]{{64}})")  # the text comes from the cluster


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a release, from the metadata of its Secret."""

    release: Key
    """The namespace and name of the release."""
    number: int
    """The number of the revision, counted by Helm."""
    status: str
    """Helm's status, such as "deployed" or "failed"."""
    secret: Key
    """The Secret that records the revision."""
    uid: str
    version: str
    """The resourceVersion of the Secret."""
    modified: float
    """The time of Helm's last write, in seconds since 1970."""
    digest: str = ""
    """The digest of the installed `Release`; empty if it was not installed by us."""
    owner: str = ""
    """The uid of the owner; empty if the release is not ours."""
    interrupted: bool = False
    """True if the revision counts as failed only because its end is unknown."""


@dataclass(frozen=True, slots=True)
class RevisionContent:
    """The content of a revision, from the payload of its Secret."""

    chart: str
    version: str
    values: Manifest
    description: str
    """The result in Helm's words."""

    @property
    def archive(self) -> str:
        """The digest of the chart's archive; empty if unknown."""
        match = _ARCHIVED.fullmatch(self.description)
        return match[1] if match else ""
