"""ModelEndpoint: one backend of requests."""
