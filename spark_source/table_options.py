"""The options of a table in Spark's catalog: `CREATE TABLE events USING millrace OPTIONS (...)`.

At CREATE TABLE, Spark asks for the schema with each option twice, as `stream` and as `option.stream`, between the
properties of the table, such as `provider`. Where the table is used, Spark passes none of them to a Python source. But
the catalog stores the schema. So the options are stored in the metadata of its columns, without the token.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

METADATA_KEY: Final = "millrace.options"
"""In the metadata of each column: a statement may use any of them."""
_PREFIX: Final = "option."
_PROPERTY: Final = "provider"
"""A property that Spark gives each table of a catalog."""
_TOKEN: Final = "token"  # noqa: S105  # the name of the option
_STREAMS: Final = ("stream", "streampattern", "slice")


def is_of_table(options: Mapping[str, str]) -> bool:
    """Return whether these are the properties of a table that is created, and not the options of a reader."""
    return any(name.lower() == _PROPERTY for name in options)


def given_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options that the user gave, without what Spark adds at CREATE TABLE."""
    if not is_of_table(options):
        return options
    return {name[len(_PREFIX) :]: value for name, value in options.items() if name.lower().startswith(_PREFIX)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with the options in it."""
    text = json.dumps({name: value for name, value in options.items() if name.lower() != _TOKEN}, sort_keys=True)
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {**field.metadata, METADATA_KEY: text})
            for field in schema.fields
        ]
    )


def options_of(
    schema: StructType, options: Mapping[str, str], *, names: Collection[str] | None = None
) -> Mapping[str, str]:
    """Return the options of a reader or writer: those given, or else those of the table that its schema is of.

    Options given with a table, as in `SELECT * FROM events WITH (token='...')`, replace those of the table. Whoever
    gives address and streams uses no table, even if the schema is one's.

    Args:
        names: of the options that are taken from the table; None for all.
    """
    lowered = {name.lower() for name in options}
    if "address" in lowered and not lowered.isdisjoint(_STREAMS):
        return options
    texts = (field.metadata.get(METADATA_KEY) for field in schema.fields)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        return options
    wanted = None if names is None else {name.lower() for name in names}
    kept = {
        name: value
        for name, value in json.loads(text).items()
        if name.lower() not in lowered and (wanted is None or name.lower() in wanted)
    }
    return {**kept, **options}


def missing_reason(name: str, given: Collection[str]) -> str:
    """Return what is wrong if a needed option is missing."""
    if given:
        return "missing"
    return (
        "missing, like all other options: if CREATE TABLE names columns, Spark passes the options of the table to no"
        f" source. Write them where the table is used: FROM the_table WITH ({name}='...', ...)"
    )
