"""A device as selectors see it: the properties that its driver publishes, parsed once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from modelplane_operator.selectors import quantity, semver
from modelplane_operator.selectors.values import INT64_MAX, INT64_MIN, DomainMap, Malformed


class Version(str):
    """The text of an attribute that is a semantic version, in contrast to a string."""

    __slots__ = ()


Attribute: TypeAlias = str | Version | bool | int | None
"""Value of an attribute; None if the driver has published none of the types that selectors can use."""


@dataclass(frozen=True, slots=True)
class Device:
    """The properties that selectors can use. Devices with equal content are equal.

    Attributes and capacity have the keys that users write: `domain/id`, or `id` alone for the driver's own domain. A
    value that cannot be parsed is stored as malformed, and is an error only for a selector that reads it.
    """

    content: tuple[Any, ...]
    """Driver, multiple allocation, attributes and capacity, for comparisons."""
    digest: int = field(compare=False, repr=False)
    """Hash of the content."""
    fields: Mapping[str, Any] = field(compare=False, repr=False)
    """Value of the variable `device`, ready for evaluation."""

    @classmethod
    def of(
        cls,
        driver: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        capacity: Mapping[str, str] | None = None,
        allow_multiple_allocations: bool = False,
    ) -> "Device":
        """Create a device; never raise (see `malformed`)."""
        attributes, capacity = attributes or {}, capacity or {}
        # The order of publication does not matter, so both maps are sorted.
        content = (
            driver,
            allow_multiple_allocations,
            # The type is part of the content, since in Python "1" == Version("1") and True == 1.
            tuple(sorted((name, type(value).__name__, value) for name, value in attributes.items())),
            tuple(sorted(capacity.items())),
        )
        fields = {
            "driver": driver,
            "allowMultipleAllocations": allow_multiple_allocations,
            "attributes": _group_by_domain(driver, {name: _parse_attribute(name, v) for name, v in attributes.items()}),
            "capacity": _group_by_domain(driver, {name: _parse_capacity(name, v) for name, v in capacity.items()}),
        }
        return cls(content, hash(content), fields)

    def __hash__(self) -> int:
        """Return the stored hash. Devices are keys of the cache of results, and hashing their content takes time."""
        return self.digest

    @property
    def driver(self) -> str:
        """Name of the DRA driver, which is also the domain of names without one."""
        return self.content[0]

    @property
    def malformed(self) -> tuple[str, ...]:
        """Return the errors of all malformed values, in a stable order."""
        domains = (*self.fields["attributes"].values(), *self.fields["capacity"].values())
        return tuple(sorted(v.reason for domain in domains for v in domain.values() if isinstance(v, Malformed)))

    @property
    def domains(self) -> frozenset[str]:
        """Return the domains of its attributes and capacity."""
        return frozenset({*self.fields["attributes"], *self.fields["capacity"]})

    def format_entry(self, what: str, domain: str, identifier: str) -> str | None:
        """Return an attribute or a capacity as it was written; None if there is none."""
        key = domain, identifier
        if what == "capacity":
            return next((text for name, text in self.content[3] if _split_name(name, self.driver) == key), None)
        return next(
            (format_value(value) for name, _, value in self.content[2] if _split_name(name, self.driver) == key), None
        )


def format_value(value: object) -> str:
    """Return a value in the notation of selectors."""
    match value:
        case bool():
            return "true" if value else "false"
        case Version():
            return str(value)
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def _group_by_domain(driver: str, values: Mapping[str, Any]) -> DomainMap:
    """Group values by their domain."""
    domains = DomainMap()
    for name, value in values.items():
        domain, identifier = _split_name(name, driver)
        domains.setdefault(domain, {})[identifier] = value
    return domains


def _split_name(name: str, driver: str) -> tuple[str, str]:
    """Split a name into its domain and its id."""
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _parse_attribute(name: str, value: Attribute) -> Any:
    """Parse an attribute; malformed if it is invalid."""
    match value:
        case None:
            return Malformed(f"attribute {name} has no value")
        case Version():
            try:
                return semver.parse(value)
            except semver.SemverError as error:
                return Malformed(f"attribute {name}: {error}")
        case bool() | str():
            return value
        case int():
            if INT64_MIN <= value <= INT64_MAX:
                return value
            return Malformed(f"attribute {name} has more than 64 bits")


def _parse_capacity(name: str, text: str) -> Any:
    """Parse a capacity; malformed if it is invalid."""
    try:
        return quantity.parse(text)
    except quantity.QuantityError as error:
        return Malformed(f"capacity {name}: {error}")
