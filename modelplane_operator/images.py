"""The images that the operator has clusters run beside the engines that users name."""

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
"""An image with its registry: `HOST/NAME:TAG`, `HOST/NAME@sha256:...`, or both."""
REGISTRY: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9.]*(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", re.ASCII)
"""A registry, and at most a path in it."""


@dataclass(frozen=True, slots=True)
class Images:
    """What clusters run. `picker` and `sidecar` are taken as they are said; what is not said is the tested one."""

    registry: str = ""
    """Where the tested ones are mirrored, under the paths that they have in their own registry."""
    picker: str = ""
    sidecar: str = ""

    def of_picker(self) -> str:
        """Return the endpoint picker's image."""
        return self.picker or self._tested(PICKER)

    def of_sidecar(self, revision: int) -> str:
        """The image of what stands before a decoding engine, for a replica of this podRevision."""
        # Another image is another pod: replicas of before keep theirs until their deployment's rollout comes to them.
        return self.sidecar or self._tested(SIDECAR, digested=revision >= 1)

    def _tested(self, image: str, *, digested: bool = True) -> str:
        digest = DIGESTS.get(image, "") if digested else ""
        path = image.partition("/")[2]
        where = f"{self.registry}/{path}" if self.registry else image
        return f"{where}@{digest}" if digest else where


TESTED: Final = Images()
