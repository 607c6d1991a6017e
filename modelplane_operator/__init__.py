"""A control plane for AI inference over a fleet of Kubernetes clusters."""

__version__ = "0.1.0"
