"""AWS on this machine: moto for EC2, IAM, EFS, ELB and STS, and an EKS of ours, which moto lacks most of."""
