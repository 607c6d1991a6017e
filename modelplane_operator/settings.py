"""What the process is told by its environment; the only reader of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Settings:
    """How the hub is reached."""

    kubeconfig: Path
    """As kubectl has it: the first file of KUBECONFIG, else the one in the home folder."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self:
        chosen = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
        return cls(Path(chosen or Path.home() / ".kube" / "config"))
