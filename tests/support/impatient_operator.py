"""The operator's command, which connects again to a misbehaving cluster after a second."""

from modelplane_operator import operator
from modelplane_operator.__main__ import main

if __name__ == "__main__":
    operator.CLUSTER_PAUSE = 1.0
    main()
