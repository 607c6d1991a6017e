"""A Helm release as we want it: a chart at a version with values, under a name that stays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest

DIGEST = 16  # 64 bits: two wishes in succession, not a birthday party


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
class Part:
    """One chart that is wanted, and the parts that have to be deployed before."""

    name: str
    release: Release
    after: tuple[str, ...] = ()
    needed: bool = field(default=True)
    """Whether no model can be served without it."""
