"""The hydrator: a separate program in the operator's image, run by a Job of a ModelCache on a workload cluster.

It fills a volume with a model's weights, and does not depend on the operator's code.
"""
