import copy
import pickle
from typing import Any

from millrace import spark_source
from millrace.spark_source import (
    DataLossError,
    MalformedValueError,
    MissingRange,
    OptionError,
    RowError,
    SchemaError,
    SourceError,
    TransactionLostError,
    errors,
)
from tests.support.tables import table

PUBLIC = [
    value
    for name in spark_source.__all__
    if isinstance(value := getattr(spark_source, name), type) and issubclass(value, SourceError)
]
ARGUMENTS: dict[type[SourceError], tuple[tuple[Any, ...], dict[str, Any]]] = {
    DataLossError: (("a/b", [MissingRange(segment_id=1, start_offset=2, start_index=3, end_offset=None)]), {}),
    MalformedValueError: (("a/b",), {"segment": 1, "offset": 2, "index": 3, "reason": "no JSON"}),
    OptionError: (("stream", "is missing"), {}),
    RowError: (("key",), {"row": 1, "partition": 2, "reason": "is too long"}),
    SchemaError: (("value", "is missing"), {}),
}
"""How those are made that take more than a text."""


def test_the_package_lists_its_public_names() -> None:
    assert dir(spark_source) == spark_source.__all__ == sorted(spark_source.__all__)


def test_every_class_is_public() -> None:
    assert {cls.__name__ for cls in PUBLIC} == {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, SourceError)
    }


@table("cls", PUBLIC)
@table("twin", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_cross_processes_with_all_that_they_know(cls: type[SourceError], twin: Any) -> None:
    positional, named = ARGUMENTS.get(cls, (("m",), {}))
    error = cls(*positional, **named)
    error.add_note("a note")
    other = twin(error)

    assert type(other) is cls
    assert (str(other), vars(other)) == (str(error), vars(error))
    assert other.retriable is cls.retriable


def test_a_batch_whose_transaction_was_lost_is_run_again_and_nothing_else_is() -> None:
    assert {cls for cls in PUBLIC if cls.retriable} == {TransactionLostError}
