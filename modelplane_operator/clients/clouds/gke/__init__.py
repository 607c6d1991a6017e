"""Google Cloud: what it has of a cluster on GKE, and calls that change it."""
