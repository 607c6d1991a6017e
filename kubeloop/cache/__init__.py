"""What is watched of clusters, kept in memory: informers, reflectors and their connections."""
