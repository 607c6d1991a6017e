"""The fleet's fixtures, for the fleet's own tests."""

from localfleet.pytest_plugin import extra_cluster, fleet, fleet_namespace

__all__ = ["extra_cluster", "fleet", "fleet_namespace"]
