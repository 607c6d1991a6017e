"""Quotas of Google Cloud that a cluster uses, by Compute Engine's metric for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADDRESSES: Final = "IN_USE_ADDRESSES"
CORES: Final = "CPUS"
DISKS: Final = "SSD_TOTAL_GB"
GLOBAL: Final = "global/"
"""Prefix of a metric whose quota belongs to the project instead of a region."""
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
"""Quotas of accelerators. Newer types have a quota per family, which Compute Engine does not report."""
_SHARED_CORES: Final = ("e2", "n1")
"""Families whose cores count towards one quota; newer families have their own."""
_ON_SSD: Final = ("a2", "e2", "g2", "n1")
"""Families whose boot disks count towards the quota of SSD."""


def _family(machine: str) -> str:
    """Return the family of a machine type, the part before the first hyphen."""
    return machine.partition("-")[0]


def counts_cores(machine: str) -> bool:
    """True if a machine's cores count towards the quota that several families share."""
    return _family(machine) in _SHARED_CORES


def counts_disk(machine: str) -> bool:
    """True if a machine's boot disk counts towards the quota of SSD."""
    return _family(machine) in _ON_SSD
