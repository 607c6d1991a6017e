"""Helm releases: as values, as Helm records them, and how its binary is run."""
