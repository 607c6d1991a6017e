"""Translate the errors of AWS into the operator's own, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Exhausted,
    Forbidden,
    InUse,
    Invalid,
    NotFound,
    NotPropagated,
    ServerFault,
    TooMany,
    Unauthorized,
)

_MAX_MESSAGE = 1000  # maximum length of a message from AWS

_CODES: Mapping[type[ApiError], tuple[str, ...]] = {
    TooMany: (
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
        "SlowDown",
    ),
    Conflict: (
        "ResourceInUseException",
        "IncorrectState",
        "IncorrectFileSystemLifeCycleState",
        "IncorrectMountTargetState",
        "InvalidStateException",
        "OperationInProgress",
        "ConcurrentModification",
    ),
    AlreadyExists: (
        "EntityAlreadyExists",
        "FileSystemAlreadyExists",
        "InvalidGroup.Duplicate",
        "InvalidLaunchTemplateName.AlreadyExistsException",
        "InvalidPermission.Duplicate",
        "InvalidSubnet.Conflict",
        "MountTargetConflict",
        "Resource.AlreadyAssociated",
        "RouteAlreadyExists",
    ),
    InUse: (
        "DependencyViolation",
        "DeleteConflict",
        "FileSystemInUse",
        "InvalidIPAddress.InUse",
        "VolumeInUse",
        "InvalidNetworkInterface.InUse",
    ),
    Exhausted: (
        "AddressLimitExceeded",
        "InsufficientInstanceCapacity",
        "InsufficientVolumeCapacity",
        "LimitExceeded",
        "LimitExceededException",
        "MaxSpotInstanceCountExceeded",
        "NatGatewayLimitExceeded",
        "ResourceLimitExceededException",
        "RouteTableLimitExceeded",
        "SecurityGroupLimitExceeded",
        "ServiceQuotaExceededException",
        "SubnetLimitExceeded",
        "UnsupportedAvailabilityZoneException",
        "VcpuLimitExceeded",
        "VpcLimitExceeded",
        "FileSystemLimitExceeded",
        "InsufficientThroughputCapacity",
        "NetworkInterfaceLimitExceeded",
        "NoFreeAddressesInSubnet",
        "SecurityGroupLimitExceeded",
        "ThroughputLimitExceeded",
    ),
    # Also for a subnet or group created seconds ago; wrong parameters are reported by other codes.
    NotPropagated: ("ResourcePropagationDelayException", "SecurityGroupNotFound", "SubnetNotFound"),
    Unauthorized: (
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    ),
    Forbidden: ("AccessDenied", "AccessDeniedException", "OptInRequired", "UnauthorizedOperation"),
    NotFound: (
        "Gateway.NotAttached",
        "InvalidAssociationID.NotFound",
        "LoadBalancerNotFound",
        "NatGatewayNotFound",
        "NoSuchEntity",
        "NoSuchResourceException",
        "NotFoundException",
        "ResourceNotFoundException",
        "FileSystemNotFound",
        "MountTargetNotFound",
        "AccessPointNotFound",
    ),
    ServerFault: (
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "ServerException",
        "ServiceFailure",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
    ),
}
"""Codes of AWS by the operator's error. Services use different codes for the same problem."""
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes}
_SIGNED_REQUEST = "The Canonical String"  # the signed request follows, with the session's token
# A role, subnet or group created seconds ago is not known everywhere in AWS yet.
_BUSY = ("not in ACTIVE", "not ACTIVE", "in progress")
"""Phrases of messages, with a general code, about a resource in transition."""
_NOT_PROPAGATED = (
    "cannot be assumed",
    "not authorized to perform: iam:PassRole",
    "does not exist or",
    "Invalid principal",
)
"""Phrases of messages, with a general code, about a resource that another service does not know yet."""


def translate_error(error: Mapping[str, Any], request: str) -> ApiError:
    """Return the operator's error for an error response of AWS. `request` describes the request, for the message."""
    details, status = error.get("Error", {}), error.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(details.get("Code", ""))
    message = str(details.get("Message", "")).partition(_SIGNED_REQUEST)[0].strip()[:_MAX_MESSAGE]
    kind = _BY_CODE.get(code)
    if kind is None and code.startswith("Invalid") and code.endswith(("NotFound", "NotFoundException")):
        kind = NotFound
    if kind is None and any(phrase in message for phrase in _NOT_PROPAGATED):
        kind = NotPropagated
    if kind is None and any(phrase in message for phrase in _BUSY):
        kind = Conflict
    if kind is None and "already exists" in message:
        kind = AlreadyExists
    if kind is None:
        kind = ServerFault if status >= 500 else Invalid
    if kind is Conflict and "already exists" in message:
        kind = AlreadyExists
    # EKS reports clusters with node groups by the same code as clusters in transition.
    if kind is Conflict and ("nodegroups" in message or "in use by" in message):
        kind = InUse
    return kind(f"{request}: {message or code} ({code})")
