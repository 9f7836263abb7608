"""Read and check the files of published figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.documents import parse as parse_json
from pipeline.errors import ClaimError
from pipeline.schemas import describe, first_error

FOLDER = Path(__file__).parents[2] / "workflow" / "config"


@dataclass(frozen=True)
class Number:
    """One published number; `uncertainty` is relative and that of the reading, 0 where exact.

    `source` is one line for a reader, `setting` what the number was made with.
    """

    id: str
    what: str
    value: float
    unit: str
    read: str
    source: str
    setting: Mapping[str, Any]
    uncertainty: float


@dataclass(frozen=True)
class Reference:
    """All published figures of one study; tables and documents are as they stand in the file."""

    id: str
    title: str
    numbers: Mapping[str, Number]
    tables: Mapping[str, Mapping[str, Any]]
    documents: Mapping[str, Mapping[str, str]]

    def number(self, name: str) -> Number:
        """The number called `name`, or the cell `table/row/column` of a table, rows from 1.

        Raises ClaimError when there is none.
        """
        if name.count("/") == 2:
            return self._cell(*name.split("/"))
        if name not in self.numbers:
            raise ClaimError(
                f"the published figures {self.id!r} have no number {name!r}; use one of "
                + ", ".join(self.numbers)
            )
        return self.numbers[name]

    def _cell(self, table: str, row: str, column: str) -> Number:
        name, content = f"{table}/{row}/{column}", self.tables.get(table)
        if content is None:
            raise ClaimError(
                f"the published figures {self.id!r} have no table {table!r} ({name!r}); use one "
                f"of {', '.join(self.tables)}"
            )
        columns = [one["name"] for one in content["columns"]]
        place = int(row) if re.fullmatch("[0-9]{1,9}", row) else 0
        if column not in columns or not 1 <= place <= len(content["rows"]):
            raise ClaimError(
                f"the table {table!r} of {self.id!r} has no cell {name!r}; use a row from 1 to "
                f"{len(content['rows'])} and one of the columns {', '.join(columns)}"
            )
        unit = content["columns"][columns.index(column)]["unit"]
        if unit == "text":
            raise ClaimError(f"the cell {name!r} of {self.id!r} is a word; name a number")
        document = self.documents[content["source"]["document"]]
        return Number(
            id=name,
            what=f"{column} in row {row} of {content['what']}",
            value=float(content["rows"][place - 1][columns.index(column)]),
            unit=unit,
            read=content["read"],
            source=f"{document['title']}, {content['source']['place']}, row {row}",
            setting=content["setting"],
            uncertainty=float(content.get("uncertainty", 0.0)),
        )


def ids() -> list[str]:
    """All studies whose published figures are here."""
    return sorted(path.parent.name for path in FOLDER.glob("*/published.json"))


@cache
def load(study: str) -> Reference:
    """The published figures of a study; raises ClaimError on an unknown one or an unfit file."""
    if study not in ids():
        raise ClaimError(f"no published figures of {study!r}; use one of {', '.join(ids())}")
    path = FOLDER / study / "published.json"
    text = read_text(path, "", ClaimError, max_bytes=MAX_MADE_BYTES)
    return parse(text, f"{study}/{path.name}")


def parse(text: str, where: str) -> Reference:
    """The content of one file; raises ClaimError naming the place and the rule it breaks."""
    content = parse_json(text, where, ClaimError)
    fault = first_error(content, "reference")
    if fault is not None:
        raise ClaimError(f"{where} {describe(fault)}")
    entries = [*content["numbers"], *content["tables"]]
    names = [entry["id"] for entry in entries]
    for entry in entries:
        if names.count(entry["id"]) > 1:
            raise ClaimError(f"{where}: the id {entry['id']!r} stands twice; make it unique")
        if entry["source"]["document"] not in content["documents"]:
            raise ClaimError(
                f"{where}: {entry['id']} names the document {entry['source']['document']!r}; "
                f"declare it in documents or use one of {', '.join(content['documents'])}"
            )
    for table in content["tables"]:
        _check_rows(table, where)
    documents = content["documents"]
    numbers = {entry["id"]: _number(entry, documents) for entry in content["numbers"]}
    tables = {table["id"]: table for table in content["tables"]}
    return Reference(content["id"], content["title"], numbers, tables, documents)


def _check_rows(table: Mapping[str, Any], where: str) -> None:
    """Each row has a value for each column, a word exactly where the column's unit is `text`."""
    kinds = [column["unit"] == "text" for column in table["columns"]]
    for place, row in enumerate(table["rows"]):
        if [isinstance(value, str) for value in row] != kinds:
            raise ClaimError(
                f"{where}: row {place} of {table['id']} is {row}; expected {len(kinds)} values, "
                "words only in columns of unit text"
            )


def _number(entry: Mapping[str, Any], documents: Mapping[str, Mapping[str, str]]) -> Number:
    source = entry["source"]
    document = documents[source["document"]]
    return Number(
        id=entry["id"],
        what=entry["what"],
        value=float(entry["value"]),
        unit=entry["unit"],
        read=entry["read"],
        source=f"{document['title']}, {source['place']}",
        setting=entry["setting"],
        uncertainty=float(entry.get("uncertainty", 0.0)),
    )
