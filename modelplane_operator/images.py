"""Images that the operator adds to users' engines on workload clusters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from modelplane_operator.api import pins
from modelplane_operator.clusters.stack.digests import DIGESTS

PICKER: Final = pins.PICKER.image
SIDECAR: Final = pins.SIDECAR.image

REFERENCE: Final = re.compile(
    r"(?P<registry>[a-zA-Z0-9][-a-zA-Z0-9.]*(:\d{1,5})?)(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""Pattern of an image with its registry: `HOST/NAME:TAG`, `HOST/NAME@sha256:...`, or both."""
REGISTRY: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9.]*(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", re.ASCII)
"""Pattern of a registry with an optional path."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images to run. `picker` and `sidecar` are used as configured; empty ones mean the tested images."""

    registry: str = ""
    """Mirror of the tested images, which keeps the paths of their own registries."""
    picker: str = ""
    """Endpoint picker's image; empty for the tested one."""
    sidecar: str = ""
    """Sidecar's image; empty for the tested one."""

    def of_picker(self) -> str:
        """Return the endpoint picker's image."""
        return self.picker or self._resolve_tested(PICKER)

    def of_sidecar(self, revision: int) -> str:
        """Return the image of the sidecar in front of a decoding engine, for a replica of this podRevision."""
        # A new image restarts the pod: older replicas keep theirs until the deployment's rollout reaches them.
        return self.sidecar or self._resolve_tested(SIDECAR, digested=revision >= 1)

    def _resolve_tested(self, image: str, *, digested: bool = True) -> str:
        """Return a tested image at its mirror, with its digest."""
        digest = DIGESTS.get(image, "") if digested else ""
        path = image.partition("/")[2]
        location = f"{self.registry}/{path}" if self.registry else image
        return f"{location}@{digest}" if digest else location


TESTED: Final = Images()
