"""Add reviews to the controllers of kinds that users write."""

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


def add_reviews(controllers: Controllers, fleet: FleetView, reach: Reach) -> Controllers:
    """Return the controllers with their reviews; that of ModelDeployments also answers Questions."""
    reviews = of_kinds(fleet, reach, {controller.type: controller for controller in controllers})

    def with_review(controller: Controller[Any, Any]) -> Controller[Any, Any]:
        review = reviews.get(controller.type)
        answers = Questions(fleet) if controller.type == of(ModelDeployment) else None
        return replace(controller, review=review, answers=answers) if review else controller

    return tuple(map(with_review, controllers))
