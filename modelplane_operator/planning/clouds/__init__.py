"""Clusters that a cloud makes: one way to decide the next calls, for every cloud (decision 77)."""
