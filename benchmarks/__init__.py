"""What the operator costs, measured: `make bench`, or `python -m benchmarks --help`."""
