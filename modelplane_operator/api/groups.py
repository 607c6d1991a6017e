"""The API groups of our kinds."""

MODELPLANE = "modelplane.ai"
INFRASTRUCTURE = "infrastructure.modelplane.ai"
