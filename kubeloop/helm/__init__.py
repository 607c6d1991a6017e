"""Helm releases: as values, in Helm's records, and the runs of its binary."""
