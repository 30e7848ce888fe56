"""The rows of a listing file: CSV, JSON lines or Parquet as one Arrow table, and which columns hold path and label."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from sophon.artifact import ARROW_ERRORS
from sophon.errors import ConfigError, StoreError
from sophon.store.address import Place
from sophon.store.parquet_pages import BeyondBoundsError
from sophon.store.parquet_rows import open_parquet
from sophon.store.store import describe, most_held

SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
PATH_NAMES: Final = (
    *("path", "file", "file_name", "filename", "file_path", "filepath", "relative_path", "image", "image_path"),
    *("image_file", "image_name", "img", "img_path", "img_name", "picture", "audio", "audio_path"),
)
# Columns of file names without their ending, as in Kaggle's competitions; see `files`.
ID_NAMES: Final = ("id", "image_id", "img_id", "id_code", "file_id", "name", "key")
LABEL_NAMES: Final = (
    *("label", "labels", "class", "class_id", "class_name", "target", "category", "category_id", "cls", "y"),
    *("breed", "species", "diagnosis", "fine_label", "coarse_label"),
)
_DELIMITERS: Final = (",", ";", "\t")
_CELL_BYTES: Final = 8  # of a table's cell without a value
_BLOCK_BYTES: Final = 1 << 26  # a row, including its newlines, has to fit into one block


@dataclass(frozen=True)
class Listing:
    """The contents of a listing file.

    Args:
        file: Location of the file.
        table: Its columns, one row per sample.
        path: Name of the column that holds the paths.
        label: Name of the column that holds the labels, if there is one.
        first_row: Number of the first row, as shown to users.
        counts_lines: Whether row numbers are line numbers of the file.
        size_bytes: Size of the file in bytes, taken before it was read.
        mtime_ns: Its modification time, taken before it was read.
        ctime_ns: Its change time, which users cannot set, taken at the same moment.
    """

    file: Place
    table: pa.Table
    path: str
    label: str | None
    first_row: int
    counts_lines: bool
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    def row(self, index: int) -> str:
        """Return the location of a row, for messages."""
        return f"{'line' if self.counts_lines else 'row'} {index + self.first_row} of {self.file}"


def read_listing(file: Path, path: str | None = None, label: str | None = None) -> Listing:
    """Return the rows of a listing.

    Args:
        file: Location of the file.
        path: The column that holds the paths; found by its name if not given.
        label: The column that holds the labels; "none" for no labels; found by its name if not given.

    Raises:
        StoreError: The file cannot be read; the message names the line.
        ConfigError: A named column, or the path column, does not exist.
    """
    suffix = file.suffix.lower()
    try:
        stat = file.stat()
        if suffix == ".parquet":
            with open_parquet(file) as rows:
                table, first, counts_lines = rows.table(), 0, False
            table.validate(full=True)  # texts that are not UTF-8, too
        elif suffix in (".jsonl", ".ndjson"):
            table, first, counts_lines = _json_lines(file), 1, True
        else:
            table, lines = _csv(file, suffix)
            # A row need not be a line, because of empty lines and multi-line strings.
            counts_lines = lines == table.num_rows + 1
            first = 2 if counts_lines else 1
    except OSError as error:
        raise StoreError(f"cannot read {file}: {describe(error)}. Check its permissions.") from error
    except BeyondBoundsError as error:
        raise StoreError(f"{file} cannot be read: {error}") from error
    except ARROW_ERRORS as error:
        raise StoreError(
            f"{file} is not a readable listing: {describe(error)}. Correct that line, or save it again."
        ) from error
    names = table.column_names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise StoreError(f"{file} has several columns named {repeated[0]!r}; rename them")
    if not table.num_rows:
        raise StoreError(f"{file} lists no files; expected one row per file")
    table = table.replace_schema_metadata(None)
    _check_times(table, file)
    chosen = _path_column(table, path, file)
    return Listing(
        file,
        table,
        chosen,
        _label_column(table, label, chosen, file),
        first,
        counts_lines,
        stat.st_size,
        stat.st_mtime_ns,
        stat.st_ctime_ns,
    )


def may_list(schema: pa.Schema) -> bool:
    """Return whether a table of this schema names files and contains no file data itself."""
    if any(_holds_bytes(column.type) for column in schema):
        return False
    return _find(schema.empty_table(), (*PATH_NAMES, *ID_NAMES)) is not None


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_bytes(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _path_column(table: pa.Table, told: str | None, file: Path) -> str:
    name = told if told in table.column_names else None
    if told is None:
        name = _find(table, (*PATH_NAMES, *ID_NAMES))
    if name is None:
        wanted = f"named {told!r}" if told else f"of paths, named {', '.join(PATH_NAMES[:4])} or similar,"
        raise ConfigError(
            f"{file} has no column {wanted}, only {', '.join(map(repr, table.column_names))}; "
            f"write {file.name}?path=COLUMN, or give it a header line with names"
        )
    kind = table[name].type
    # Kaggle's ids may be numbers, and are still file names.
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise ConfigError(f"{file}: column {name!r} holds {kind}, expected paths; write {file.name}?path=COLUMN")
    return name


def _label_column(table: pa.Table, told: str | None, path: str, file: Path) -> str | None:
    if told == "none":
        return None
    if told is not None:
        if told not in table.column_names or told == path:
            raise ConfigError(
                f"{file} has no label column {told!r}; choose from {', '.join(map(repr, table.column_names))}"
            )
        return told
    return _find(table.drop_columns([path]), LABEL_NAMES)


def _find(table: pa.Table, names: tuple[str, ...]) -> str | None:
    by_name = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in reversed(table.column_names)}
    return next((by_name[name] for name in names if name in by_name), None)


def _csv(file: Path, suffix: str) -> tuple[pa.Table, int]:
    """Return the rows of a CSV file, and its number of lines including the header."""
    data = _utf8(file)
    header = data.split(b"\n", 1)[0].decode()
    delimiter = "\t" if suffix == ".tsv" else max(_DELIMITERS, key=header.count)
    read = pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # Paths are strings even if all of them look like numbers; "007" is not 7.
    names = pa_csv.read_csv(io.BytesIO(data.split(b"\n", 1)[0] + b"\n"), read, parse).column_names
    texts = {name: pa.string() for name in names if _find(pa.table({name: []}), (*PATH_NAMES, *ID_NAMES))}
    convert = pa_csv.ConvertOptions(column_types=texts, null_values=["", "NA", "NaN", "nan", "null"])
    return pa_csv.read_csv(io.BytesIO(data), read, parse, convert), len(data.rstrip(b"\n").split(b"\n"))


def _json_lines(file: Path) -> pa.Table:
    columns: dict[str, list[Any]] = {}
    data = _utf8(file)
    most_cells = most_held(len(data)) // _CELL_BYTES
    lines = data.decode().split("\n")  # not splitlines, which also splits at characters inside strings
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"line {number} of {file} is not JSON: {describe(error)}. Correct or remove it."
            ) from error
        if not isinstance(row, dict):
            raise StoreError(f"line {number} of {file}: expected an object {{…}}, got {line[:40]!r}; correct it")
        for name, value in row.items():
            columns.setdefault(name, []).extend([None] * (number - 1 - len(columns[name])))
            columns[name].append(value)
        if len(columns) * number > most_cells:
            raise StoreError(
                f"line {number} of {file}: {len(columns):,} names in so many lines make too large a table; "
                "give all lines the same names"
            )
    for column in columns.values():
        column.extend([None] * (len(lines) - len(column)))
    return pa.table({name: _column(file, name, values) for name, values in columns.items()})


def _column(file: Path, name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except ARROW_ERRORS as error:
        first = next(value for value in values if value is not None)
        for number, value in enumerate(values, start=1):
            try:
                pa.array([first, value])
            except ARROW_ERRORS:
                raise StoreError(
                    f"line {number} of {file}: {name!r} is {value!r}, but {first!r} in earlier rows; a column must "
                    "have values of one kind: correct it"
                ) from error
        raise


def _utf8(file: Path) -> bytes:
    data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StoreError(
            f"line {line} of {file} is not UTF-8: {data[error.start : error.start + 4].hex(' ')}; "
            f"save it as UTF-8, for example with iconv -f LATIN1 -t UTF-8"
        ) from error
    if b"\0" in data[:4096]:
        raise StoreError(f"{file} is not a UTF-8 text file; save it as UTF-8")
    return data


def _check_times(table: pa.Table, file: Path) -> None:
    """Raise for dates and times that Python cannot express, before samples with them are asked for."""
    for name in table.column_names:
        column = table[name]
        if pa.types.is_temporal(column.type):
            try:
                column.to_pylist()
            except (ValueError, OverflowError, KeyError, *ARROW_ERRORS) as error:
                raise StoreError(
                    f"{file}: column {name!r} ({column.type}) has values that Python has no dates or times for: "
                    f"{describe(error)}. Save it as text or numbers, or leave it out."
                ) from error
