"""Run the operator's command for a demo, whose clouds list a resource as soon as it exists."""

from datetime import timedelta
from functools import partial

from modelplane_operator.__main__ import main
from modelplane_operator.kinds import kinds

if __name__ == "__main__":
    main(partial(kinds, cloud_lag=timedelta(seconds=15)))
