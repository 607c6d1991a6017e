"""Which hosts a grant covers, and what flags say of the hub's."""

from __future__ import annotations

import re

import pytest

from modelplane_operator.api.bounds import HOST_OR_WILDCARD
from modelplane_operator.api.llm_inference_grant import is_among
from modelplane_operator.setting_values import grants, hosts


@pytest.mark.parametrize(
    ("host", "covered"),
    [
        ("qwen.example.com", True),
        ("a.team.example.com", True),
        ("a.b.team.example.com", True),
        ("team.example.com", False),
        ("evilteam.example.com", False),
        ("a.team.example.com.evil.org", False),
        ("kimi.example.com", False),
        ("x.qwen.example.com", False),
    ],
)
def test_a_host_is_covered_by_its_name_or_a_domain_above_it(host: str, *, covered: bool) -> None:
    assert is_among(host, ("qwen.example.com", "*.team.example.com")) is covered
    assert is_among(host, ("*",))
    assert not is_among(host, ())


@pytest.mark.parametrize("text", ["*a.example.com", "a.*.example.com", "*.", "**", "", "A.example.com", "a..b", "*.*"])
def test_what_is_no_host_and_no_domain_is_not_granted(text: str) -> None:
    assert not re.search(HOST_OR_WILDCARD, text)
    with pytest.raises(ValueError, match="no host"):
        hosts(f"team={text}")


def test_flags_say_who_may_be_where_on_the_hub() -> None:
    assert grants("b=models, a=models,a=models") == (("a", "models"), ("b", "models"))
    assert hosts("a=*.a.example.com,a=*,") == (("a", "*"), ("a", "*.a.example.com"))
    for wrong in ("a=kube-system", "a=modelplane-system", "a", "=models", "A=models", f"{'a' * 64}=models"):
        with pytest.raises(ValueError, match=r"namespace|DNS label"):
            grants(wrong)
