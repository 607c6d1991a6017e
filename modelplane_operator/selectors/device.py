"""A device as a selector sees it: what its driver says about it, read once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from modelplane_operator.selectors import quantity, semver
from modelplane_operator.selectors.values import INT64_MAX, INT64_MIN, DomainMap, Malformed


class Version(str):
    """The text of an attribute that is a semantic version, as opposed to an ordinary string."""

    __slots__ = ()


Attribute: TypeAlias = str | Version | bool | int | None


@dataclass(frozen=True, slots=True)
class Device:
    """What selectors may ask about; two devices with the same content are the same.

    Attributes and capacity are keyed as users write them: `domain/id`, or `id` alone for the driver's own domain.
    A value that cannot be read is remembered as such, and is an error only for a selector that reads it.
    """

    content: tuple[Any, ...]
    digest: int = field(compare=False, repr=False)
    fields: Mapping[str, Any] = field(compare=False, repr=False)
    """The variable `device`, ready for evaluation."""

    @classmethod
    def of(
        cls,
        driver: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        capacity: Mapping[str, str] | None = None,
        allow_multiple_allocations: bool = False,
    ) -> "Device":
        """Read a device; never raises (see `malformed`)."""
        attributes, capacity = attributes or {}, capacity or {}
        content = (
            driver,
            allow_multiple_allocations,
            # The type is part of the content: Python calls "1" and Version("1") equal, and True and 1.
            tuple(sorted((name, type(value).__name__, value) for name, value in attributes.items())),
            tuple(sorted(capacity.items())),
        )
        fields = {
            "driver": driver,
            "allowMultipleAllocations": allow_multiple_allocations,
            "attributes": _by_domain(driver, {name: _attribute(name, v) for name, v in attributes.items()}),
            "capacity": _by_domain(driver, {name: _capacity(name, v) for name, v in capacity.items()}),
        }
        return cls(content, hash(content), fields)

    def __hash__(self) -> int:
        return self.digest

    @property
    def driver(self) -> str:
        return self.content[0]

    @property
    def malformed(self) -> tuple[str, ...]:
        """What is wrong with each value that cannot be read, in a stable order."""
        domains = (*self.fields["attributes"].values(), *self.fields["capacity"].values())
        return tuple(sorted(v.reason for domain in domains for v in domain.values() if isinstance(v, Malformed)))

    @property
    def domains(self) -> frozenset[str]:
        """Whose attributes and capacity it has."""
        return frozenset({*self.fields["attributes"], *self.fields["capacity"]})

    def written(self, what: str, domain: str, identifier: str) -> str | None:
        """An attribute or the capacity as its author wrote it; None when there is none."""
        wanted = domain, identifier
        if what == "capacity":
            return next((text for name, text in self.content[3] if _split(name, self.driver) == wanted), None)
        return next((shown(value) for name, _, value in self.content[2] if _split(name, self.driver) == wanted), None)


def shown(value: object) -> str:
    """A value as a selector would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case Version():
            return str(value)
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def _by_domain(driver: str, values: Mapping[str, Any]) -> DomainMap:
    domains = DomainMap()
    for name, value in values.items():
        domain, identifier = _split(name, driver)
        domains.setdefault(domain, {})[identifier] = value
    return domains


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute(name: str, value: Attribute) -> Any:
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


def _capacity(name: str, text: str) -> Any:
    try:
        return quantity.parse(text)
    except quantity.QuantityError as error:
        return Malformed(f"capacity {name}: {error}")
