"""A real fleet of Kubernetes clusters on one Linux machine: see docs/local-fleet.md."""
