"""All tables of a checkpoint, which is a SQLite database, in format version 9.

Each kind of thing has its tables, declared in a module of its own. Each row carries a checksum (see `table`), and the
one row of `meta` knows how many rows each of these tables has and the sum of their checksums. So a row that is damaged,
lost, doubled, moved to another table, or of an older version of its page (a write that the disk lost) is noticed when
the checkpoint is verified. The counts and sums are kept by triggers, so that writing rows need not read the rows that
they replace.

Table `format` never changes its shape: any version can tell which version wrote the file.
"""

from collections.abc import Iterator
from typing import Final

from millrace.server.container.kind import Kinds
from millrace.server.container.state.scalars import HISTORY_COLUMN, NUMBER_COLUMNS
from millrace.server.container.table import Table

from .exclusive_table import EXCLUSIVE_WRITERS

FORMAT_VERSION: Final = 9
PRODUCT: Final = "millrace checkpoint"

FORMAT: Final = Table("format", number=1, key=["version"], integers=["version"], texts=["product"])
META_NUMBERS: Final = ("sequence", "replay_from", "container_epoch", *NUMBER_COLUMNS)


class Schema:
    """The tables of a checkpoint that holds some kinds.

    Attributes:
        kinds: of entities.
        tables: of all that a container knows.
        meta: of its one row.
    """

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.tables = (*kinds.tables, EXCLUSIVE_WRITERS)
        figures = (f"{table.name}_{figure}" for table in self.tables for figure in ("count", "sum"))
        self.meta = Table(
            "meta",
            number=2,
            key=["id"],
            integers=["id", *META_NUMBERS, *figures],
            texts=["server_id", HISTORY_COLUMN],
        )

    def statements(self) -> Iterator[str]:
        """Yield the statements that make the tables and triggers of an empty checkpoint."""
        for table in (FORMAT, self.meta, *self.tables):
            yield table.create
        for table in self.tables:
            for name, columns in table.indexes.items():
                yield f"CREATE INDEX {name} ON {table.name} ({', '.join(columns)})"
        for table in self.tables:
            count, total = f"{table.name}_count", f"{table.name}_sum"
            for event, sign, row in (("INSERT", "+", "NEW"), ("DELETE", "-", "OLD")):
                yield (
                    f"CREATE TRIGGER {table.name}_{event.lower()} AFTER {event} ON {table.name} BEGIN UPDATE meta "
                    f"SET {count} = {count} {sign} 1, {total} = {total} {sign} {row}.checksum; END"
                )
