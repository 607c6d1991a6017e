"""Clusters on clouds: the parts that all clouds share, and a folder for each cloud."""
