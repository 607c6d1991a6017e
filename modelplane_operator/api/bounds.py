"""Limits on what users may write, and patterns of names: each limit once, with its reason.

Each list, map, text and number of a `spec` has a limit. So its readers know that it is small, and the API server can
estimate the cost of our rules. A limit is that of the program that uses the value in the end, where it has one
(Kubernetes, the Gateway API, Linux). Otherwise it is far above any value in use. An API server takes an object of
1.5 MB in all.

An object may be older than a limit that it exceeds. The API server then still accepts changes of its other fields, and
the operator reads it (`Resource.parse`), but does nothing new for it until it fits (`Resource.parse_bounded`).
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from kubeloop.helm.release import VERSION_PATTERN
from kubeloop.model import Rule, must

# Names, as Kubernetes has them: one that no object can have is refused where it is written ----------------------------

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"^{_LABEL}(\.{_LABEL})*$"
SERVICE_NAME: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
HOST_OR_WILDCARD: Final = rf"^(\*|(\*\.)?{_LABEL}(\.{_LABEL})*)$"
"""One host, `*.` before a domain for all that are below it, or `*` for every host."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
"""Name of an object: a Secret, a ConfigMap, a StorageClass, a DeviceClass, ..."""
OurName = Annotated[str, Field(min_length=1, max_length=63, pattern=SUBDOMAIN)]
"""Name of an object of ours, which becomes a label's value."""
DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=f"^{_LABEL}$")]
NamespaceName = DnsLabel
DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
"""Key in a Secret or ConfigMap."""
VariableName = Annotated[str, Field(min_length=1, max_length=253, pattern="^[ -<>-~]+$")]
"""Name of an environment variable: printable ASCII but '='."""
LABEL_TEXT: Final = "^([a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?)?$"
LabelText = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_TEXT)]
"""What becomes a label's value, such as the name of a pool."""
PLACE: Final = "^[a-zA-Z0-9][-_. a-zA-Z0-9]*$"
CloudName = Annotated[str, Field(min_length=1, max_length=63, pattern=PLACE)]
"""What a cloud calls a region, a zone or a machine: it becomes a part of host names and paths."""

# Texts ----------------------------------------------------------------------------------------------------------------

String63 = Annotated[str, Field(min_length=1, max_length=63)]
"""A word of our own, not the name of an object."""
String253 = Annotated[str, Field(min_length=1, max_length=253)]
"""A longer one: what may have a DNS name in it."""
QUALIFIED: Final = 317  # of a label's key: a DNS name of 253, '/', and 63
AnyTaintKey = Annotated[str, Field(max_length=QUALIFIED)]
TaintValue = Annotated[str, Field(max_length=253)]
Version = Annotated[str, Field(min_length=1, max_length=32, pattern=VERSION_PATTERN)]
"""Version of a chart, or a range of them. It becomes part of a file's name, so that it has no '/'."""
Digest = Annotated[str, Field(min_length=71, max_length=71, pattern="^sha256:[0-9a-f]{64}$")]
"""Of an archive or an image, as registries write it."""
Url = Annotated[str, Field(min_length=1, max_length=2048)]
"""The longest that browsers, proxies and gateways agree on."""
UrlPath = Annotated[str, Field(max_length=1024, pattern=r"^(/[!-\[\]-~]*)?$")]
"""The longest that the Gateway API takes; in printable ASCII without `\\`, as gateways may read that as a pattern's."""
Image = Annotated[str, Field(min_length=1, max_length=1024)]
"""A registry, 255 characters of repository, 128 of tag and a digest have ample room."""
Argument = Annotated[str, Field(max_length=131072)]
"""The longest argument or variable that Linux gives to a process."""
Prose = Annotated[str, Field(max_length=8192)]
"""For people to read: some pages."""

# How many -------------------------------------------------------------------------------------------------------------

ARGUMENTS: Final = 512  # an engine has some 200 options
VARIABLES: Final = 512
COMMAND: Final = 64
PULL_SECRETS: Final = 32
TAINTS: Final = 64  # also tolerations: a cluster with more is one that nobody understands
ZONES: Final = 32  # no region has more than a handful
GROUPS: Final = 128  # of endpoints behind one URL
LABELS: Final = 32  # that an object carries, or is selected by
COMPOSED: Final = 1024  # objects that Crossplane had composed, in manifests that come from there
NODES: Final = 65536  # the largest clusters of any cloud

NodeCount = Annotated[int, Field(ge=0, le=NODES)]
DiskSize = Annotated[int, Field(ge=10, le=65536)]
"""In GB; the largest disks of any cloud."""

KEYS = Rule(
    f"self.all(k, k.size() <= {QUALIFIED})",
    f"A key may have at most {QUALIFIED} characters: that is a DNS name, '/' and a name of 63.",
)
"""A schema cannot bound the keys of a map."""
LabelsToMatch = Annotated[
    dict[str, Annotated[str, Field(max_length=63)]],
    Field(max_length=LABELS),
    must(KEYS),
]

# A deployment as a whole: each of its replicas, up to a thousand, has a copy ------------------------------------------

SELECTORS: Final = 128  # of devices, in all engines together: ten are many
SELECTOR_TEXT: Final = 65536  # characters of all of them: six of the longest, or some hundred ordinary ones
POD_TEXT: Final = 262144  # characters of all engines' commands, arguments, variables and annotations
