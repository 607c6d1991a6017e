"""A base class for values that are often used as keys: the hash of the content is computed once."""

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class CachedHash:
    """A value with a cached hash.

    Subclasses need `__hash__ = CachedHash.__hash__`, or the dataclass generates a slow one.
    """

    digest: int = field(init=False, compare=False, repr=False)
    """Hash of all fields that are compared."""

    def __post_init__(self) -> None:
        values = tuple(getattr(self, part.name) for part in fields(self) if part.compare)
        object.__setattr__(self, "digest", hash(values))

    def __hash__(self) -> int:
        return self.digest
