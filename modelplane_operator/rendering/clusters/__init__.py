"""Clusters that a cloud makes, as ordered sets of its resources: data for the planner that all clouds share."""
