"""What AWS refuses, as our errors: sorted once, here."""

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
    NotSettled,
    ServerFault,
    TooMany,
    Unauthorized,
)

_WORDS = 1000  # of AWS's message

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
    # Of a subnet or a group that was made seconds ago, too: what is wrong with a parameter is told otherwise.
    NotSettled: ("ResourcePropagationDelayException", "SecurityGroupNotFound", "SubnetNotFound"),
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
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes}
_QUOTES = "The Canonical String"  # what follows is the request that was signed, with the token of its session
# A role, a subnet or a group that was made seconds ago: AWS does not know it everywhere.
_BUSY = ("not in ACTIVE", "not ACTIVE", "in progress")
_YOUNG = ("cannot be assumed", "not authorized to perform: iam:PassRole", "does not exist or", "Invalid principal")


def translated(error: Mapping[str, Any], asked: str) -> ApiError:
    """The error that an answer of AWS is; `asked` says what it answers."""
    said, status = error.get("Error", {}), error.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(said.get("Code", ""))
    message = str(said.get("Message", "")).partition(_QUOTES)[0].strip()[:_WORDS]
    kind = _BY_CODE.get(code)
    if kind is None and code.startswith("Invalid") and code.endswith(("NotFound", "NotFoundException")):
        kind = NotFound
    if kind is None and any(words in message for words in _YOUNG):
        kind = NotSettled
    if kind is None and any(words in message for words in _BUSY):
        kind = Conflict
    if kind is None and "already exists" in message:
        kind = AlreadyExists
    if kind is None:
        kind = ServerFault if status >= 500 else Invalid
    if kind is Conflict and "already exists" in message:
        kind = AlreadyExists
    if kind is Conflict and ("nodegroups" in message or "in use by" in message):
        kind = InUse
    return kind(f"{asked}: {message or code} ({code})")
