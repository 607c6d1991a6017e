"""A control plane for AI inference over a fleet of Kubernetes clusters."""
