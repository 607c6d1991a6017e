"""How far it is, for the operator: an annotation of the Job, and the last word in the container's termination message.

The pod's account may change that one Job, and nothing else. Where the API server is not reached, it hydrates all the
same: the last word takes another way.
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
EVERY: Final = 15.0  # seconds: each is a write on the cluster, and may be one on the hub
TIMEOUT: Final = 5.0
LONGEST: Final = 1000  # characters of a termination message: Kubernetes keeps 4096 of all containers


@dataclass(frozen=True, slots=True)
class Api:
    """The way to the Job, as a pod finds it."""

    server: str
    account: Path
    """The folder with the account's token and the server's authority."""
    namespace: str
    job: str

    def annotate(self, text: str) -> None:
        """Raises OSError."""
        body = json.dumps({"metadata": {"annotations": {ANNOTATION: text}}}).encode()
        request = urllib.request.Request(  # noqa: S310 - the server is not a user's to choose
            f"{self.server}/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.job}/status",
            data=body,
            method="PATCH",
            headers={
                "Authorization": f"Bearer {(self.account / 'token').read_text().strip()}",
                "Content-Type": "application/merge-patch+json",
            },
        )
        trust = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # No proxy of the environment's: that is the way to weights.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        with opener.open(request, timeout=TIMEOUT):
            pass


@dataclass(slots=True)
class Reporter:
    """Tells of a staging, in a thread of its own."""

    staging: Staging
    api: Api | None
    every: float = EVERY
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _last: tuple[float, int] | None = field(default=None, init=False)

    def __enter__(self) -> Reporter:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self.every):
            self.tell(self.facts())

    def facts(self) -> Mapping[str, Any]:
        """What there is to tell now."""
        done, now = self.staging.done, time.monotonic()
        listing = done.listing
        if listing is None:
            return {}
        there = min(self.staging.staged(), listing.size)
        (before, was), self._last = self._last or (now, there), (now, there)
        rate = int((there - was) / (now - before)) if now > before else 0
        return {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "revision": listing.revision,
            "files": done.files,
            "totalFiles": len(listing.files),
            "bytes": there,
            "totalBytes": listing.size,
            "bytesPerSecond": max(rate, 0),
            **({"digest": done.digest, "changed": done.changed, "unlisted": done.unlisted} if done.digest else {}),
        }

    def tell(self, facts: Mapping[str, Any]) -> None:
        if not facts:
            return
        text = json.dumps(facts)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if self.api is None:
            return
        try:
            self.api.annotate(text)
        except OSError as error:  # urllib's errors are
            sys.stdout.write(f"progress not told: {type(error).__name__}\n")


def last_word(path: Path, text: str) -> None:
    """What Kubernetes shows of a container that has ended."""
    try:
        path.write_text(text[:LONGEST])
    except OSError:
        sys.stdout.write("the termination message cannot be written\n")
