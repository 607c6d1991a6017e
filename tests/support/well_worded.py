"""A fixture that checks the wording of every message that a test's decisions make."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from kubeloop import condition_types as conditions
from kubeloop.words import sentence
from modelplane_operator import printer_columns as glance
from modelplane_operator.api import reasons
from tests.support.messages import faults


@pytest.fixture(scope="module")
def well_worded() -> Generator[None]:
    def checked(*clauses: str) -> str:
        for said in clauses:
            wrong = [*faults(said)]
            assert not wrong, f"{'; '.join(wrong)}: {said}"
        return sentence(*clauses)

    with pytest.MonkeyPatch.context() as patch:
        for module in (conditions, reasons, glance):
            patch.setattr(module, "sentence", checked)
        yield
