"""What is read of the store for a review of an object that somebody writes; what is said of it is in planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modelplane_operator.api import ModelDeployment
from modelplane_operator.api.base import of
from modelplane_operator.controllers.admission.questions import Questions
from modelplane_operator.controllers.admission.reviews import of_kinds
from modelplane_operator.controllers.fleet_view import FleetView
from modelplane_operator.rendering.backend_url import Reach
from modelplane_operator.runtime.loop import Controller
from modelplane_operator.runtime.watched import Controllers


def reviewed(controllers: Controllers, fleet: FleetView, reach: Reach) -> Controllers:
    """The controllers, those of kinds that people write with a review."""
    reviews = of_kinds(fleet, reach, {one.type: one for one in controllers})

    def with_review(one: Controller[Any, Any]) -> Controller[Any, Any]:
        found = reviews.get(one.type)
        answers = Questions(fleet) if one.type == of(ModelDeployment) else None
        return replace(one, review=found, answers=answers) if found else one

    return tuple(map(with_review, controllers))
