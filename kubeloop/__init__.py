"""A controller runtime for several clusters: client, caches, queue, plans and how they are carried out."""
