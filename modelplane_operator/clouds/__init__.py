"""Clusters on clouds: what is the same for all of them, and a folder for each cloud."""
