"""Published figures, one JSON file per study, each number with its source: `load(id)`.

The files hold facts that others have published and nothing that was measured here. Beside a number
stand its meaning, unit, place, the way it was read, and the hardware behind it
(`pipeline/schemas/reference.schema.json`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.documents import parse as parse_json
from pipeline.errors import ClaimError
from pipeline.schemas import describe, first_error

FOLDER = Path(__file__).parents[2] / "workflow" / "config"


class Number(NamedTuple):
    """One published number; `source` is one line for a reader."""

    value: float
    source: str


@dataclass(frozen=True)
class Reference:
    """All published figures of one study; tables are as in the file, but with a source in words."""

    id: str
    numbers: Mapping[str, Number]
    tables: Mapping[str, Mapping[str, Any]]

    def number(self, name: str) -> Number:
        """The number called `name`, or the cell `table/row/column` of a table, rows from 1.

        Raises ClaimError when there is none.
        """
        if name.count("/") != 2:
            if name not in self.numbers:
                raise ClaimError(
                    f"the published figures {self.id!r} have no number {name!r}; use one of "
                    + ", ".join(self.numbers)
                )
            return self.numbers[name]
        table, row, column = name.split("/")
        if (content := self.tables.get(table)) is None:
            raise ClaimError(
                f"the published figures {self.id!r} have no table {table!r} ({name!r}); use one "
                f"of {', '.join(self.tables)}"
            )
        units = {one["name"]: one["unit"] for one in content["columns"]}
        place = int(row) if re.fullmatch("[0-9]{1,9}", row) else 0
        if column not in units or not 1 <= place <= len(content["rows"]):
            raise ClaimError(
                f"the table {table!r} of {self.id!r} has no cell {name!r}; use a row from 1 to "
                f"{len(content['rows'])} and one of the columns {', '.join(units)}"
            )
        if units[column] == "text":
            raise ClaimError(f"the cell {name!r} of {self.id!r} is a word; name a number")
        value = content["rows"][place - 1][[*units].index(column)]
        return Number(float(value), f"{content['source']}, row {row}")


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
    if (fault := first_error(content, "reference")) is not None:
        raise ClaimError(f"{where} {describe(fault)}")
    entries, documents = [*content["numbers"], *content["tables"]], content["documents"]
    names = [entry["id"] for entry in entries]
    for entry in entries:
        if names.count(entry["id"]) > 1:
            raise ClaimError(f"{where}: the id {entry['id']!r} stands twice; make it unique")
        source = entry["source"]
        if source["document"] not in documents:
            raise ClaimError(
                f"{where}: {entry['id']} names the document {source['document']!r}; "
                f"declare it in documents or use one of {', '.join(documents)}"
            )
        entry["source"] = f"{documents[source['document']]['title']}, {source['place']}"
    for table in content["tables"]:
        # Each row has a value for each column, a word exactly where the column's unit is `text`.
        kinds = [column["unit"] == "text" for column in table["columns"]]
        for place, row in enumerate(table["rows"]):
            if [isinstance(value, str) for value in row] != kinds:
                raise ClaimError(
                    f"{where}: row {place} of {table['id']} is {row}; expected {len(kinds)} "
                    "values, words only in columns of unit text"
                )
    numbers = {n["id"]: Number(float(n["value"]), n["source"]) for n in content["numbers"]}
    return Reference(content["id"], numbers, {t["id"]: t for t in content["tables"]})
