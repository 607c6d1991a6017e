"""Service Quotas, and Capacity Blocks: what an account may have, and what is set aside for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modelplane_operator.clouds.eks.render import quotas
from tests.support.aws.model import Refusal

GENEROUS: Mapping[str, float] = {
    quotas.VPCS: 5,
    quotas.ADDRESSES: 5,
    quotas.CLUSTERS: 100,
    quotas.STANDARD: 640,
    quotas.GRAPHICS: 1920,
    quotas.PARALLEL: 1920,
}
NAMES: Mapping[str, str] = {
    quotas.VPCS: "VPCs per Region",
    quotas.ADDRESSES: "EC2-VPC Elastic IPs",
    quotas.CLUSTERS: "Clusters",
    quotas.STANDARD: "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    quotas.GRAPHICS: "Running On-Demand G and VT instances",
    quotas.PARALLEL: "Running On-Demand P instances",
}


@dataclass
class Quotas:
    """Those that were changed, and those that every account has."""

    own: dict[str, float] = field(default_factory=dict[str, float])
    default: dict[str, float] = field(default_factory=lambda: {**GENEROUS})
    blocks: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Capacity reservations by id, in the words of EC2."""

    def get_service_quota(self, service_code: str, quota_code: str) -> Any:
        return self._told(service_code, quota_code, self.own)

    def get_aws_default_service_quota(self, service_code: str, quota_code: str) -> Any:
        return self._told(service_code, quota_code, self.default)

    def _told(self, service: str, code: str, values: Mapping[str, float]) -> Any:
        if code not in values or quotas.SERVICES[code] != service:
            raise Refusal("NoSuchResourceException", f"{service} has no quota {code}")
        return {"Quota": {"ServiceCode": service, "QuotaCode": code, "QuotaName": NAMES[code], "Value": values[code]}}
