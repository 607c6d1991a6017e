"""ModelService: one URL over endpoints."""
