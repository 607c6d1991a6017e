"""What is read of the store for a review of an object that somebody writes; what is said of it is in `rules`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kubeloop.loop import Controller
from kubeloop.resource import of
from kubeloop.watched import Controllers
from modelplane_operator.api import ModelDeployment
from modelplane_operator.ask.admission.answer_questions import Questions
from modelplane_operator.ask.admission.reviews import of_kinds
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.routing.endpoint.backend_url import Reach


def reviewed(controllers: Controllers, fleet: FleetView, reach: Reach) -> Controllers:
    """The controllers, those of kinds that people write with a review."""
    reviews = of_kinds(fleet, reach, {one.type: one for one in controllers})

    def with_review(one: Controller[Any, Any]) -> Controller[Any, Any]:
        found = reviews.get(one.type)
        answers = Questions(fleet) if one.type == of(ModelDeployment) else None
        return replace(one, review=found, answers=answers) if found else one

    return tuple(map(with_review, controllers))
