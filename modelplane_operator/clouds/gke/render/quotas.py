"""The quotas of Google Cloud that a cluster takes of, by the metric that Compute Engine has for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADDRESSES: Final = "IN_USE_ADDRESSES"
CORES: Final = "CPUS"
DISKS: Final = "SSD_TOTAL_GB"
GLOBAL: Final = "global/"
"""Before the metric of a quota that is the project's and no region's."""
NETWORKS: Final = f"{GLOBAL}NETWORKS"
ALL_GPUS: Final = f"{GLOBAL}GPUS_ALL_REGIONS"
ACCELERATORS: Final[Mapping[str, str]] = {
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
}
"""Newer ones are in a quota by family, which Compute Engine does not tell of."""
_SHARED_CORES: Final = ("e2", "n1")
_ON_SSD: Final = ("a2", "e2", "g2", "n1")


def _family(machine: str) -> str:
    return machine.partition("-")[0]


def counts_cores(machine: str) -> bool:
    """Whether a machine's cores are in the quota that several families share; the others have their own."""
    return _family(machine) in _SHARED_CORES


def counts_disk(machine: str) -> bool:
    """Whether its boot disk is in the quota of ordinary ones."""
    return _family(machine) in _ON_SSD
