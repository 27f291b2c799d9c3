import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from millrace.spark_source.errors import SchemaError
from millrace.spark_source.values import ValueFormat, arrow_fields
from tests.spark_source.conftest import arrow_schema_of
from tests.spark_source.values.rows import structs, types
from tests.support.tables import table


@given(st.sampled_from(ValueFormat).flatmap(lambda each: st.tuples(st.just(each), structs(types(each)))))
def test_types_are_those_that_spark_demands(drawn: tuple[ValueFormat, t.StructType]) -> None:
    value_format, schema = drawn

    assert arrow_fields(schema.fields, value_format).equals(arrow_schema_of(schema))


MAP = t.MapType(t.StringType(), t.LongType())


@table(
    ("column", "kind"),
    [
        ("c", t.NullType()),
        ("c", t.YearMonthIntervalType()),
        ("c", t.CalendarIntervalType()),
        ("c", t.VariantType()),
        ("c", t.StringType("UTF8_LCASE")),
        ("c.d", t.StructType([t.StructField("d", t.NullType())])),
        ("c[]", t.ArrayType(t.NullType())),
        ("c[].d", t.ArrayType(t.StructType([t.StructField("d", t.VariantType())]))),
    ],
)
@table("value_format", ValueFormat)
def test_a_type_without_a_form_is_refused_by_column(column: str, kind: t.DataType, value_format: ValueFormat) -> None:
    """Behaviour 60."""
    with pytest.raises(SchemaError, match=f'no form in valueFormat "{value_format}"$') as caught:
        arrow_fields([t.StructField("b", t.LongType()), t.StructField("c", kind)], value_format)

    assert caught.value.column == column


@pytest.mark.parametrize("kind", [MAP, t.DayTimeIntervalType()])
def test_what_json_alone_has_no_form_for_says_so(kind: t.DataType) -> None:
    """Behaviour 60."""
    field = t.StructField("c", t.ArrayType(kind))
    with pytest.raises(SchemaError, match=r'column "c\[\]": .* valueFormat "json"; "arrow" has one'):
        arrow_fields([field], ValueFormat.JSON)

    assert arrow_fields([field], ValueFormat.ARROW).names == ["c"]


def test_a_name_that_is_there_twice_is_refused() -> None:
    """Behaviour 60."""
    inner = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])
    with pytest.raises(SchemaError, match=r'column "s\.a": named twice'):
        arrow_fields([t.StructField("s", inner)], ValueFormat.JSON)
