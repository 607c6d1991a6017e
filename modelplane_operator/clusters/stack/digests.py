"""The digests of what is fetched from registries at its default version, by reference: `make digests` writes them.

An image's is that of its manifest, for all architectures where it has several; a chart's is that of its archive. What
has none here is fetched by its tag, and `make digests-check`, which a release runs, says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeloop.helm.release import Release

DIGESTS: Final[Mapping[str, str]] = {
    "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.9.0": (
        "sha256:4cc3f15f254c26df7611e3b92ff7c82f83ad4ecb325de639c9dfb32873c6ce90"
    ),
    "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.9.0": (
        "sha256:873179822ab0895a37ea09f2112ca39a6ae50a26612561c8bfad7f9a8c5af6f5"
    ),
}


def chart_reference(repository: str, chart: str, version: str) -> str:
    """How a chart's archive is called in the table."""
    return f"{repository.rstrip('/')}/{chart}:{version}"


def tested_archive(release: Release) -> str | None:
    """The digest of a chart's archive, where it is known of this version."""
    return DIGESTS.get(chart_reference(release.repository, release.chart, release.version))
