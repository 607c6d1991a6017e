"""Which revision of what is ours in a pod replicas are given."""

from __future__ import annotations

from typing import Final

REVISION: Final = 4
"""Of what is ours in a pod. Whoever changes that raises it, and keeps what replicas of before have until they are
changed in their turn: an upgrade of the operator must not restart every engine of the fleet at once.

1: capabilities are dropped, and /dev/shm has a size.
2: copies are spread over nodes and zones; vLLM and SGLang keep idle connections for longer than their
callers; SGLang is told apart; answers have minutes to end, but not of what a probe ends.
3: a pod drains for as long as a request is running, and ends within seconds when its engine answers no more. A dead
engine is not ready after ten seconds, and not thirty. With a ModelCache it has a name to be served by, and time
to start by its size.
4: no runtime gives a container devices by an environment variable of its image, and weights are read and not written.
"""
