"""Tables of a catalog, as in `CREATE TABLE ops USING `staniel-journal` OPTIONS (path 'spool')`.

Spark gives the options of such a table to a Python source when the table is made. When it is read, Spark gives only
those of the query, and the table's schema. So the options are stored in the schema, as the comment of the first column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OF_CATALOG = {"owner", "provider", "location", "external", "comment"}  # the options that Spark adds
DOUBLED = "option."  # Spark gives the options twice, once with this prefix
KEPT = "staniel-journal options: "
PATHS = {"path", "paths", "hostsfile"}


def options_of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being made in a catalog; None if it is no such table."""
    names = {name.lower() for name in given}
    if not {"owner", "provider"} <= names:
        return None
    return {
        name: value
        for name, value in given.items()
        if name.lower() not in OF_CATALOG and not name.lower().startswith(DOUBLED)
    }


def with_options(columns: pa.Schema, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that stores its options."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema: StructType = from_arrow_schema(columns)
    schema.fields[0].metadata = {"comment": KEPT + msgspec.json.encode(dict(options), order="sorted").decode()}
    return schema


def given_or_kept(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a query, with the stored ones of the table unless the query names a path. Raises ValueError
    if there are neither.
    """
    names = {name.lower() for name in given}
    if names & PATHS:
        return given
    comment = str((schema.fields[0].metadata or {}).get("comment", "")) if schema.fields else ""
    if not comment.startswith(KEPT):
        raise ValueError(
            'staniel-journal needs the option path: the spool folder, as in .load("spool") or .load("s3://bucket/spool");'
            " a table of a catalog keeps its options as the comment of its first column: make it with OPTIONS (path"
            " '...') and without columns"
        )
    kept = msgspec.json.decode(comment.removeprefix(KEPT), type=dict[str, str])
    return {**{name: value for name, value in kept.items() if name.lower() not in names}, **given}
