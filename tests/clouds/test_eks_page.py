"""Commands for AWS on the page about EKS: operations and parameters that AWS has, and policies that are JSON."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from botocore import xform_name
from botocore.session import get_session

from modelplane_operator.clouds.eks.render.identity import ROLES
from tests.support.manifests import ROOT

PAGE = (ROOT / "docs" / "eks.md").read_text()
OF_EVERY_COMMAND = {"query", "output", "region"}
TEXT = PAGE.replace("\\\n", " ")
COMMANDS = sorted(set(re.findall(r"(?:^|[`(])(aws [a-z]+ [a-z-]+[^`\n]*)", TEXT, re.MULTILINE)))
TRUSTS = re.findall(r"^cat > trust.json <<END\n(.*?)^END$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_commands_and_policies() -> None:
    assert len(COMMANDS) > 10
    assert len(TRUSTS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_of_aws_with_its_parameters(command: str) -> None:
    _, service, name, *rest = re.sub(r"\)+$", "", command).split(" ", 3)
    model = get_session().get_service_model(service)
    operations = {xform_name(operation, "-"): operation for operation in model.operation_names}
    assert name in operations
    if not rest:  # in a sentence
        return

    shape = model.operation_model(operations[name]).input_shape
    given = {word[2:] for word in shlex.split(rest[0]) if word.startswith("--")} - OF_EVERY_COMMAND
    known = {xform_name(member, "-"): member for member in shape.members} if shape else {}
    required = {xform_name(member, "-") for member in shape.required_members} if shape else set[str]()
    assert given <= known.keys()
    assert required <= given


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_trust_policy_is_json_that_lets_one_principal_assume_the_role(trust: str) -> None:
    (statement,) = json.loads(trust)["Statement"]

    assert statement["Effect"] == "Allow"
    assert len(statement["Principal"]) == 1
    if "Service" in statement["Principal"]:
        assert (statement["Principal"]["Service"], *statement["Action"]) == ROLES["role-cni"]
    else:
        assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
        assert any(value.endswith(":modelplane-operator") for value in statement["Condition"]["StringEquals"].values())


def test_the_policy_fits_into_a_managed_one() -> None:
    """Of 6,144 characters without spaces; an inline policy of a user has 2,048."""
    policy = (ROOT / "examples" / "access" / "eks-policy.json").read_text()

    assert len(re.sub(r"\s", "", policy)) <= 6144
