"""The revision of the operator's own settings in pods of new replicas."""

from __future__ import annotations

from typing import Final

REVISION: Final = 4
"""Revision of the operator's own settings in a pod.

A change of those raises it, and keeps what older revisions had: an upgrade of the operator changes no pod. A replica
gets the new revision when its deployment changes, or when its owner rolls it. tests/golden/revisions holds the pods of
each revision.

  1: capabilities are dropped, and /dev/shm has a size.
  2: copies are spread over nodes and zones; vLLM and SGLang keep idle connections for longer than their clients;
     SGLang is distinguished from vLLM; responses have minutes to finish, but not if a probe ends the container.
  3: a pod drains while a request is running, and ends within seconds when its engine does not answer. A dead engine
     is not ready after ten seconds instead of thirty. With a ModelCache it has a served name, and a start time by the
     size of the cache.
  4: no runtime adds devices by an environment variable of an image, weights are mounted read-only, and an engine with
     `--model-path` gets no `--model` of its ModelCache.
"""
SECURITY_REVISION: Final = 4
"""Newest revision that mends a weakness: deployments may ask to be rolled for those alone."""
