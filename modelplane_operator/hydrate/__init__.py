"""The hydrator: a program of its own, in the operator's image, that a Job of a ModelCache runs on a workload cluster.

It fills a volume with a model's weights, and imports nothing of the operator's.
"""
