"""Delta logs beside the manifests, so that programs that know nothing of manifests read the tables.

`<lake>/<table>/_delta_log` names the files of the batches that count. The manifests stay what the commands here go by:
the log follows them after each commit, and a log that a kill left behind follows them after the next one. It is written
for lakes in a folder, where deltalake is installed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.lake.batches import Batches, TableBatch
from lamplighter.cloud_sync.fleet.lake.folder import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.local.kinds import TIME, Kind, ListOf, columns_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

SILVER_TABLES = ("streams", "observations", "actuations")
# Others are parts of tables: the rows of several batches have to be added up, or joined.
DELTA_TABLES = ("bronze", *SILVER_TABLES)


_DELTA_TYPES = {
    "VARCHAR": "string",
    "INTEGER": "integer",
    "BIGINT": "long",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    TIME: "timestamp",
}


class DeltaLog:
    """The log of a table. One process at a time may write it. say: receives what kept it from being written."""

    def __init__(self, batches: Batches, say: Callable[[str], None] = lambda line: None) -> None:
        self._batches = batches
        self._say = say
        self._path = batches.lake.path(batches.name)
        self._follows = False

    def add(self, batch: TableBatch) -> None:
        """Adds the files of a batch that was committed; the first time, all that the log lacks."""
        if not self._follows:
            self.follow()
        elif batch.files:
            self._follows = self._try(lambda: self._commit(dict.fromkeys(batch.files, batch), [], True))

    def follow(self, *, data_change: bool = True) -> None:
        """Makes the log name the files of all batches that count. data_change: whether rows may have changed."""
        if not self._batches.lake.local or find_spec("deltalake") is None:
            return
        live = {name: batch for batch in self._batches.live() for name in batch.files}

        def commit() -> None:
            known = _files(self._table())
            new = {name: batch for name, batch in live.items() if name not in known}
            self._commit(new, [name for name in known if name not in live], data_change)

        self._follows = self._try(commit)

    def _try(self, commit: Callable[[], None]) -> bool:
        from deltalake.exceptions import DeltaError

        log = f"{self._path}/_delta_log"
        try:
            commit()
        except DeltaError as error:
            reason = str(error).partition("\n")[0]
            self._say(f"{log}: {reason}; remove the folder, and the next batch writes it again")
            return False
        # The manifests count: a file that is lost, or whose footer is damaged, must not stop a batch.
        except (OSError, ValueError) as error:
            self._say(f"{log}: not written: {str(error) or type(error).__name__}; the next batch tries it again")
            return False
        return True

    def _commit(self, new: Mapping[str, TableBatch], gone: Sequence[str], data_change: bool) -> None:
        """new: file -> its batch; gone: files that no longer count."""
        if not new and not gone:
            return
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

        adds = []
        for name, batch in new.items():
            facts = self._batches.lake.fs.info(self._batches.lake.path(self._batches.name, name))
            # The rows of a batch of one file need no look into it.
            rows = batch.rows if len(batch.files) == 1 else self._batches.rows_of(name)
            statistics = json.dumps({"numRecords": rows})
            adds.append(AddAction(name, facts["size"], {}, int(facts["mtime"] * 1000), data_change, statistics))
        properties = CommitProperties(custom_metadata={"batches": " ".join(sorted({one.id for one in new.values()}))})
        schema = Schema.from_json(json.dumps(_delta_type(columns_of(self._batches.schema))))
        found = self._table()
        if found is None:
            create_table_with_add_actions(self._path, schema, adds, mode="append", commit_properties=properties)
            return
        known = {field.name for field in found.schema().fields}
        if later := [field for field in schema.fields if field.name not in known]:
            found.alter.add_columns(later)
        sizes = _files(found)
        now_ms = int(time.time() * 1000)
        removes = [RemoveAction(name, data_change, now_ms, sizes[name], {}) for name in gone]
        found.create_write_transaction([*adds, *removes], "append", found.schema(), commit_properties=properties)

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        return DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None


def follow_all(
    lake: Lake, names: Iterable[str], say: Callable[[str], None] = lambda line: None, *, data_change: bool = True
) -> None:
    """Makes the logs of some tables name the files of all batches that count."""
    for name in names:
        DeltaLog(table(lake, name), say).follow(data_change=data_change)


def _files(found: DeltaTable | None) -> dict[str, int]:
    """The files that a log names, with their sizes."""
    if found is None:
        return {}
    actions: Any = found.get_add_actions()
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def _delta_type(kind: Kind) -> Any:
    """A type in the JSON of a Delta log. Any value may be null, whatever a file says of its own."""
    if isinstance(kind, ListOf):
        return {"type": "array", "elementType": _delta_type(kind.member), "containsNull": True}
    if isinstance(kind, dict):
        fields = ((name, _delta_type(member)) for name, member in kind.items())
        return {
            "type": "struct",
            "fields": [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in fields],
        }
    return _DELTA_TYPES[str(kind)]
