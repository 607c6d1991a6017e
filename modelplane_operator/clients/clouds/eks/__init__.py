"""Amazon EKS, and the parts of AWS that a cluster needs, by boto3."""
