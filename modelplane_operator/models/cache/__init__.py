"""ModelCache: weights on the clusters that need them."""
