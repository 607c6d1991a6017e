"""Which Gateway the hub gets, and what is said of it, as steps and conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubeloop.client.certificates import secret_data
from kubeloop.plan import Create, Issue, Replace
from kubeloop.types import GATEWAY, type_of
from modelplane_operator.api import names
from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewayStatus, MutualTLSReady
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.gateway.certificates import PAUSE, new_authority
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES
from modelplane_operator.routing.gateway.plan import Observed, plan
from modelplane_operator.routing.gateway.plan.gateway import REPLACED_SECONDS, UNSIGNED_SECONDS
from modelplane_operator.routing.gateway.render import hosts_of
from modelplane_operator.routing.service.api_keys import FOLLOWED
from tests.support.builders import EPOCH
from tests.support.plans import carried_out, told
from tests.support.secrets import signing_secret

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

ADDRESS = "10.0.0.42"


TLS = {"secretRef": {"name": "hub-gateway"}, "hostnames": ["models.example.com", "*.example.org"]}


def gateway(
    name: str = "default",
    *,
    terminating: bool = False,
    tls: Manifest | None = None,
    mutual_tls: str = "Auto",
    **status: Any,
) -> InferenceGateway:
    when = {"deletionTimestamp": EPOCH.isoformat()} if terminating else {}
    spec = {"backend": "Traefik", "traefik": {"version": "40.2.0"}, "mutualTLS": mutual_tls}
    spec |= {"tls": tls} if tls else {}
    return InferenceGateway.parse({"metadata": {"name": name, "uid": "u", **when}, "spec": spec, "status": status})


PLAIN = {"TLSReady": ("False", "NotAsked", "Models are reached by http alone: set spec.tls")}
THEIRS = {
    "MutualTLSReady": (
        "False",
        "NotOffered",
        (
            "The operator did not install the Traefik of this hub: set that up for mutual TLS, then set spec.mutualTLS"
            " to Always"
        ),
    )
}


CLOSED = signing_secret(until=EPOCH.isoformat())


def seen(subject: InferenceGateway, *children: Manifest, namespace: bool = True) -> Observed:
    return Observed(subject, children, namespace=namespace, now=EPOCH, key_paths=CLOSED)


def written(observed: Observed) -> Observed:
    children = carried_out(plan(observed), observed.children)
    return replace(observed, children=tuple(one for one in children if one["kind"] != "Namespace"), namespace=True)


def judged(observed: Observed, *, status: str = "True", generation: int = 1, address: str | None = ADDRESS) -> Observed:
    """The same once a gateway controller has looked at it."""

    def said(child: Manifest) -> Manifest:
        aspects = ("Accepted", "Programmed") if type_of(child) == GATEWAY else ("Accepted",)
        conditions = [
            {"type": one, "status": status, "reason": "Because", "message": "why", "observedGeneration": generation}
            for one in aspects
        ]
        addresses = [{"type": "IPAddress", "value": address}] if address and type_of(child) == GATEWAY else []
        listeners = [
            {"name": one["name"], "conditions": listens(status, generation)}
            for one in child["spec"].get("listeners", ())
        ]
        return {**child, "status": {"conditions": conditions, "addresses": addresses, "listeners": listeners}}

    return replace(observed, children=tuple(map(said, observed.children)))


def listens(status: str, generation: int = 1, aspect: str = "") -> list[Manifest]:
    """What a listener says of itself; with an aspect, only that has the status."""
    return [
        {
            "type": one,
            "status": status if aspect in {one, ""} else "True",
            "reason": "Because",
            "message": "why",
            "observedGeneration": generation,
        }
        for one in ("Accepted", "ResolvedRefs", "Programmed")
    ]


def listening(observed: Observed, listener: str, conditions: list[Manifest]) -> Observed:
    """The same where one listener says something else."""

    def said(child: Manifest) -> Manifest:
        listeners = child["status"]["listeners"]
        changed = [{**one, "conditions": conditions} if one["name"] == listener else one for one in listeners]
        return {**child, "status": {**child["status"], "listeners": changed}}

    return replace(observed, children=tuple(map(said, observed.children)))


def reported(observed: Observed) -> InferenceGatewayStatus:
    status = plan(observed).status
    assert isinstance(status, InferenceGatewayStatus)
    return status


def address(observed: Observed) -> str | None:
    return reported(observed).address


def test_an_operator_that_loses_its_helm_has_clusters_answer_the_hub_alone_as_before() -> None:
    told = [MutualTLSReady.READY.condition(EPOCH).to_manifest()]
    secret = {"metadata": {"name": names.GATEWAY_CERTIFICATE, "namespace": names.SYSTEM_NAMESPACE}}
    lost = replace(seen(gateway(conditions=told)), secrets=(secret,))
    again = replace(seen(gateway(conditions=[MutualTLSReady.PREPARING.condition(EPOCH).to_manifest()])), secrets=())
    said = [next(one for one in reported(each).conditions if one.type == "MutualTLSReady") for each in (lost, again)]
    assert [one.reason for one in said] == ["Ready", "NotOffered"], "what never presented one does not say so"


def test_paths_of_the_key_service_are_signed_and_others_are_over_once_no_guard_has_one() -> None:
    """Ten minutes after, as gateways take minutes to follow. It is told in the Secret, and nothing is done again."""
    first = plan(replace(seen(gateway()), key_paths=None))
    issued = [step for step in first.steps if isinstance(step, Issue)]
    of_before = replace(seen(gateway()), key_paths=signing_secret(), unsigned=True)
    signed = replace(of_before, unsigned=False)
    ended = [step.manifest for step in plan(signed).steps if isinstance(step, Replace)]

    assert [one.metadata for one in issued] == [
        {"name": "modelplane-gateway-key-paths", "namespace": "modelplane-system"}
    ]
    assert issued[0].certificate.signer is None, "a Secret that is only created: two operators make one"
    assert not [step for step in plan(of_before).steps if isinstance(step, Replace | Issue)]
    assert ended == [signing_secret(until=(EPOCH + FOLLOWED).isoformat())]
    assert not [step for step in plan(seen(gateway())).steps if isinstance(step, Replace | Issue)]
    assert first.requeue_after == plan(of_before).requeue_after == UNSIGNED_SECONDS
    assert plan(seen(gateway())).requeue_after is None


def test_of_a_traefik_of_somebody_elses_it_is_said_what_nobody_sees() -> None:
    secret = {"metadata": {"name": names.GATEWAY_CERTIFICATE, "namespace": names.SYSTEM_NAMESPACE}}
    asked = replace(seen(gateway(mutual_tls="Always")), secrets=(secret,))
    said = next(one for one in reported(asked).conditions if one.type == "MutualTLSReady")
    assert (said.status, "to the loopback address" in (said.message or "")) == ("True", True)


def test_a_hub_gateway_that_is_not_known_to_present_one_has_what_is_there_renewed() -> None:
    made = new_authority((), EPOCH, {"namespace": names.SYSTEM_NAMESPACE})
    assert made is not None
    authority = {
        "kind": "Secret",
        "metadata": {**made.metadata, "uid": "s"},
        "data": secret_data(made.certificate, None),
    }
    lost = replace(seen(gateway()), secrets=(authority,))
    assert [str(one) for one in plan(lost).steps if isinstance(one, Issue)] == [
        f"issue Secret {names.SYSTEM_NAMESPACE}/{names.GATEWAY_CERTIFICATE}"
    ]
    assert not [one for one in plan(seen(gateway())).steps if isinstance(one, Issue)], "nothing is begun"


def test_a_certificate_that_somebody_replaced_is_told_and_issued_again_and_clusters_stay_closed() -> None:
    made = new_authority((), EPOCH, {"namespace": names.SYSTEM_NAMESPACE})
    assert made is not None
    authority = {"kind": "Secret", "metadata": made.metadata, "data": secret_data(made.certificate, None)}
    issue = next(one for one in plan(asking(authority)).steps if isinstance(one, Issue))
    stored = {"kind": "Secret", "metadata": issue.metadata, "data": secret_data(issue.certificate, authority)}
    at_rest = asking(authority, stored)
    assert not [one for one in plan(at_rest).steps if isinstance(one, Issue)]
    broken = replace(judged(written(at_rest)), fault="its certificate does not prove the name hub")
    assert not [one for one in plan(broken).steps if isinstance(one, Issue)], "first it is told"
    assert plan(broken).requeue_after == REPLACED_SECONDS
    reports = gateway(mutual_tls="Always", conditions=[MutualTLSReady.REPLACED.condition(EPOCH).to_manifest()])
    again = replace(broken, gateway=reports)
    assert not [one for one in plan(again).steps if isinstance(one, Issue)], "who replaces it may do so each second"
    steps = plan(replace(again, now=again.now + PAUSE)).steps
    assert [one.metadata["name"] for one in steps if isinstance(one, Issue)] == [names.GATEWAY_CERTIFICATE]
    conditions = {one.type: one for one in reported(broken).conditions}
    assert conditions["MutualTLSReady"].reason == conditions["Ready"].reason == "CertificateReplaced"
    assert conditions["Ready"].message == (
        "Secret modelplane-system/modelplane-gateway-certificate was changed by another client (its certificate does "
        "not prove the name hub): the operator issues the certificate again. If this repeats, stop what writes that "
        "Secret"
    )
    assert MutualTLSReady.REPLACED.is_desired


def asking(*secrets: Manifest) -> Observed:
    return replace(seen(gateway(mutual_tls="Always")), secrets=secrets)


def test_an_authority_outlives_its_hub_gateway_and_a_certificate_does_not() -> None:
    told = [MutualTLSReady.PREPARING.condition(EPOCH).to_manifest()]
    first = [one for one in plan(seen(gateway(conditions=told, mutual_tls="Always"))).steps if isinstance(one, Issue)]
    assert [(one.key.name, "ownerReferences" in one.metadata) for one in first] == [(names.gateway_authority(1), False)]
    authority = {
        "kind": "Secret",
        "metadata": {**first[0].metadata, "uid": "s"},
        "data": secret_data(first[0].certificate, None),
    }
    then = plan(replace(seen(gateway(conditions=told, mutual_tls="Always")), secrets=(authority,)))
    (leaf,) = [one for one in then.steps if isinstance(one, Issue)]
    assert (leaf.key.name, "ownerReferences" in leaf.metadata) == (names.GATEWAY_CERTIFICATE, True)


@pytest.mark.parametrize("mutual_tls", ["Auto", "Never"])
def test_an_authority_of_an_older_version_is_freed_from_its_hub_gateway_and_not_made_anew(mutual_tls: str) -> None:
    owned = on_hub(seen(gateway()).gateway, names.GATEWAY_AUTHORITY, namespace=names.SYSTEM_NAMESPACE)
    made = new_authority((), EPOCH, owned)
    assert made is not None
    known = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**made.metadata, "uid": "s", "resourceVersion": "7"},
        "data": secret_data(made.certificate, None),
    }
    asked = gateway(mutual_tls=mutual_tls)

    (freed,) = [one.manifest for one in plan(replace(seen(asked), secrets=(known,))).steps if isinstance(one, Replace)]
    metadata = {name: value for name, value in known["metadata"].items() if name != "ownerReferences"}
    assert freed == {**known, "metadata": metadata}, "nothing else of it changes, and only that version of it"
    after = plan(replace(seen(asked), secrets=(freed,))).steps
    assert not [one for one in after if isinstance(one, Replace)]


def test_other_servers_below_a_wildcard_of_the_certificate_are_not_the_hub_gateway() -> None:
    tls = {**TLS, "hostnames": ["models.corp.example", "*.corp.example"]}
    own = hosts_of(gateway(tls=tls, address="192.0.2.1"))
    assert {"models.corp.example", "192.0.2.1"} <= own
    assert "vllm.corp.example" not in own


def test_nothing_is_there_yet() -> None:
    first = seen(gateway())

    assert [str(step) for step in plan(first).steps] == [
        "apply GatewayClass traefik",
        "apply Gateway modelplane-system/modelplane",
    ]
    assert told(plan(first)) == {
        "ControllerReady": ("False", "Installing", "Starting (waiting for: GatewayClass traefik)"),
        **THEIRS,
        **PLAIN,
        "Ready": (
            "False",
            "Creating",
            "Starting (waiting for: GatewayClass traefik); "
            "starting (waiting for: Gateway modelplane-system/modelplane); "
            "Gateway modelplane-system/modelplane has no address",
        ),
    }
    assert address(first) is None


def test_the_namespace_is_made_where_it_lacks_and_belongs_to_nobody() -> None:
    without = plan(seen(gateway(), namespace=False))
    namespace = without.steps[0]

    assert str(namespace) == "create Namespace modelplane-system"
    assert isinstance(namespace, Create)
    assert namespace.manifest["metadata"] == {"name": "modelplane-system"}
    assert plan(written(seen(gateway(), namespace=False))) == plan(written(seen(gateway())))


def test_a_gateway_that_is_programmed_and_has_an_address_is_ready() -> None:
    ready = judged(written(seen(gateway())))

    assert address(ready) == ADDRESS
    assert told(plan(ready)) == {
        "ControllerReady": ("True", "ControllerHealthy", ""),
        **THEIRS,
        **PLAIN,
        "Ready": ("True", "Available", f"Models are reached at http://{ADDRESS}"),
    }
    assert plan(written(ready)) == plan(ready), "a fixpoint"


@pytest.mark.parametrize(
    ("found", "controller", "why"),
    [
        (
            judged(written(seen(gateway())), generation=0),
            "Installing",
            "GatewayClass traefik is not Accepted: starting (waiting for: the gateway's controller); "
            "Gateway modelplane-system/modelplane is not Programmed: starting (waiting for: the gateway's controller)",
        ),
        (
            judged(written(seen(gateway())), status="False"),
            "Installing",
            "GatewayClass traefik is not Accepted: Because: why; "
            "Gateway modelplane-system/modelplane is not Programmed: Because: why",
        ),
        (
            judged(written(seen(gateway())), address=None),
            "ControllerHealthy",
            f"Gateway modelplane-system/modelplane has no address: {GIVE_ADDRESSES}",
        ),
    ],
    ids=["nobody looked", "refused", "no address"],
)
def test_what_is_lacking_is_named(found: Observed, controller: str, why: str) -> None:
    assert told(plan(found))["ControllerReady"][1] == controller
    assert told(plan(found))["Ready"] == ("False", "Creating", why)


def test_the_address_outlives_a_gateway_that_somebody_deletes() -> None:
    assert address(seen(gateway(address=ADDRESS))) == ADDRESS


def test_another_name_is_told_and_gets_nothing() -> None:
    second = plan(seen(gateway("bare-metal")))
    why = "Models are served through the InferenceGateway named default; this one does nothing: delete it"

    assert second.steps == ()
    assert told(second) == {"ControllerReady": ("False", "NotServed", why), "Ready": ("False", "NotServed", why)}


def test_a_gateway_on_its_way_out_gets_nothing_new_and_keeps_its_address() -> None:
    leaving = seen(gateway(terminating=True, address=ADDRESS))

    assert plan(leaving).steps == ()
    assert address(leaving) == ADDRESS
    assert told(plan(leaving))["Ready"][:2] == ("False", "Deleting")


# TLS ------------------------------------------------------------------------------------------------------------------


def test_models_are_reached_by_https_once_all_host_names_are_answered() -> None:
    ready = judged(written(seen(gateway(tls=TLS))))

    assert reported(ready).url == "https://models.example.com"
    assert reported(ready).address == ADDRESS
    assert told(plan(ready)) == {
        "ControllerReady": ("True", "ControllerHealthy", ""),
        **THEIRS,
        "TLSReady": ("True", "Served", ""),
        "Ready": ("True", "Available", "Models are reached at https://models.example.com"),
    }


LACKS = [
    (
        listens("False", aspect="ResolvedRefs"),
        "CertificateUnusable",
        "Secret modelplane-system/hub-gateway cannot be used: Because: why",
    ),
    (
        listens("False", aspect="Programmed"),
        "Configuring",
        "The gateway does not listen to https for *.example.org: Because: why",
    ),
    (
        listens("True", generation=0),
        "Configuring",
        "The gateway does not listen to https for *.example.org: starting (waiting for: the gateway's controller)",
    ),
    (
        [],
        "Configuring",
        "The gateway does not listen to https for *.example.org: starting (waiting for: the gateway's controller)",
    ),
]


@pytest.mark.parametrize(("said", "reason", "why"), LACKS, ids=["certificate", "refused", "outdated", "silent"])
def test_what_keeps_https_from_being_answered_is_said(said: list[Manifest], reason: str, why: str) -> None:
    found = listening(judged(written(seen(gateway(tls=TLS)))), "https-1", said)

    assert told(plan(found))["TLSReady"] == ("False", reason, why)
    assert told(plan(found))["Ready"] == (
        "False",
        "CertificateUnusable" if reason == "CertificateUnusable" else "Creating",
        why,
    )


@pytest.mark.parametrize(
    ("known", "http", "url"),
    [
        (None, "Served", f"http://{ADDRESS}"),
        (None, "Refused", None),
        (f"http://{ADDRESS}", "Refused", None),
        ("https://models.example.com", "Served", "https://models.example.com"),
        ("https://before.example.com", "Refused", "https://before.example.com"),
    ],
)
def test_without_a_certificate_no_url_goes_back_to_http(known: str | None, http: str, url: str | None) -> None:
    found = judged(written(seen(gateway(tls={**TLS, "http": http}, url=known))))
    lost = listening(found, "https-0", listens("False", aspect="ResolvedRefs"))

    assert reported(lost).url == url


def test_without_tls_again_the_condition_does_not_go_on_to_say_that_all_is_well() -> None:
    before = plan(judged(written(seen(gateway(tls=TLS))))).status
    assert isinstance(before, InferenceGatewayStatus)
    found = judged(written(seen(gateway(**before.to_manifest()))))

    assert told(plan(found))["TLSReady"][:2] == ("False", "NotAsked")
    assert told(plan(found))["Ready"][0] == "True"
    assert reported(found).url == f"http://{ADDRESS}"
