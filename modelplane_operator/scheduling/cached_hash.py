"""Values that are looked up often: two with the same content are the same, and the hash is worked out once."""

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class CachedHash:
    """Give a subclass `__hash__ = CachedHash.__hash__`: a dataclass makes itself a slow one otherwise."""

    digest: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        values = tuple(getattr(self, part.name) for part in fields(self) if part.compare)
        object.__setattr__(self, "digest", hash(values))

    def __hash__(self) -> int:
        return self.digest
