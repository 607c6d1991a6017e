"""Report the progress to the operator: an annotation of the Job, and the container's termination message.

The pod's service account may only change that Job. If the API server cannot be reached, hydration continues, and the
termination message reports the result.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from modelplane_operator.hydrate.staging import Staging

ANNOTATION: Final = "modelplane.ai/progress"
"""Annotation of the Job that the operator reads."""
EVERY: Final = 15.0  # seconds; each report is a write on the cluster, and may cause one on the hub
TIMEOUT: Final = 5.0
"""Seconds for one report, so that a slow API server does not delay the next ones."""
LONGEST: Final = 1000  # maximum characters of a termination message; Kubernetes keeps 4096 of all containers


@dataclass(frozen=True, slots=True)
class Api:
    """The API server and the Job, as seen from the pod."""

    server: str
    """URL of the API server."""
    account: Path
    """Folder with the service account's token and the CA certificate."""
    namespace: str
    job: str

    def annotate(self, text: str) -> None:
        """Set the progress annotation of the Job. Raise OSError."""
        body = json.dumps({"metadata": {"annotations": {ANNOTATION: text}}}).encode()
        request = urllib.request.Request(  # noqa: S310 - the server is not a user's to choose
            # A write to `status` changes the metadata, too, but never the spec: so this permission suffices for
            # nothing else.
            f"{self.server}/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.job}/status",
            data=body,
            method="PATCH",
            headers={
                "Authorization": f"Bearer {(self.account / 'token').read_text().strip()}",
                "Content-Type": "application/merge-patch+json",
            },
        )
        trust = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # The proxy of the environment is only for weights.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        with opener.open(request, timeout=TIMEOUT):
            pass


@dataclass(slots=True)
class Reporter:
    """A thread that reports the progress of a staging."""

    staging: Staging
    """Source of the figures."""
    api: Api | None
    """API server and Job; None if the progress is only printed."""
    every: float = EVERY
    """Seconds between two reports."""
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    """Event that ends the thread."""
    _last: tuple[float, int] | None = field(default=None, init=False)
    """Time and bytes of the last report, for the rate."""

    def __enter__(self) -> Reporter:
        """Start the thread. It ends with the process, so that no report can keep it running."""
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        """Report the progress until the hydration ends."""
        while not self._over.wait(self.every):
            self.tell(self.facts())

    def facts(self) -> Mapping[str, Any]:
        """Return the current progress; empty before the listing is known."""
        done, now = self.staging.done, time.monotonic()
        listing = done.listing
        if listing is None:
            return {}
        staged = min(self.staging.count_bytes(), listing.size)
        (time_before, staged_before), self._last = self._last or (now, staged), (now, staged)
        rate = int((staged - staged_before) / (now - time_before)) if now > time_before else 0
        return {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "revision": listing.revision,
            "files": done.files,
            "totalFiles": len(listing.files),
            "bytes": staged,
            "totalBytes": listing.size,
            "bytesPerSecond": max(rate, 0),
            **({"digest": done.digest, "changed": done.changed, "unlisted": done.unlisted} if done.digest else {}),
        }

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Print the progress, and write it to the Job."""
        if not facts:
            return
        text = json.dumps(facts)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if self.api is None:
            return
        try:
            self.api.annotate(text)
        except OSError as error:  # urllib's errors are OSErrors
            sys.stdout.write(f"progress not told: {type(error).__name__}\n")


def last_word(path: Path, text: str) -> None:
    """Write the termination message of the container."""
    try:
        path.write_text(text[:LONGEST])
    except OSError:
        sys.stdout.write("the termination message cannot be written\n")
