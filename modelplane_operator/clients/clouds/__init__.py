"""Clouds: what they have of a cluster, and calls that change it. SDKs are extras, imported where one is used."""
