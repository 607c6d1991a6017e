"""What is nested too deep is cut off, and nothing else of an answer changes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.wire import DEEPEST, shallow

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.just('"}]\\"{[')
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda value: st.lists(value) | st.dictionaries(st.text(), value), max_leaves=20
)


@given(VALUES, VALUES)
def test_what_is_deep_is_cut_off_and_the_rest_stays(before: Any, after: Any) -> None:
    around = [orjson.dumps(one) for one in (before, after)]
    assert shallow(around[0]) == around[0]

    deep = b'{"a":[' * 5_000 + b'"]}"' + b"]}" * 5_000
    cut = orjson.loads(shallow(b"[" + around[0] + b"," + deep + b"," + around[1] + b"]"))

    assert (cut[0], cut[2]) == (before, after)
    levels, value = 1, cut[1]
    while value is not None:
        levels, value = levels + 1, value["a"] if isinstance(value, dict) else value[0]
    assert levels == DEEPEST - 1
    with pytest.raises(TypeError):
        orjson.dumps(cut)
