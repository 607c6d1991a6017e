"""EKSCluster: a cluster on Amazon EKS."""
