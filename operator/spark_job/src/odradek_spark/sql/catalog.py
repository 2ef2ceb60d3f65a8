"""The tables and streams that a shell has declared; pure. Names ignore case, as Spark's do."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek_spark.sql.errors import SqlError
from odradek_spark.sql.statements import Kind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Relation:
    """A topic as rows: each record of a STREAM, the newest record per key of a TABLE."""

    kind: Kind
    name: str
    topic: str
    format: str
    schema: "StructType"
    key: str | None


class Catalog:
    """What was declared, in order."""

    def __init__(self) -> None:
        self._relations: dict[str, Relation] = {}

    def find(self, name: str) -> Relation | None:
        """Return the table or stream of this name."""
        return self._relations.get(name.casefold())

    def of_kind(self, kind: Kind) -> list[Relation]:
        """Return all tables or all streams."""
        return [one for one in self._relations.values() if one.kind == kind]

    def put(self, relation: Relation) -> None:
        """Declare it, in place of what has its name."""
        self._relations[relation.name.casefold()] = relation

    def drop(self, kind: Kind, name: str) -> bool:
        """Forget it; return whether it was there. Raises SqlError if it is of the other kind."""
        found = self.find(name)
        if found is None:
            return False
        if found.kind != kind:
            raise SqlError(f"{found.name} is a {found.kind}: DROP {found.kind} {found.name}")
        del self._relations[name.casefold()]
        return True
