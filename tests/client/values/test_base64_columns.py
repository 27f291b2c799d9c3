import base64
import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.client.values.base64_columns import decode_base64, encode_base64
from millrace.client.values.codec import MalformedError
from tests.support.tables import table

BASE64 = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
COLUMNS = st.tuples(st.lists(st.none() | st.binary(max_size=10), max_size=6), st.integers(0, 2))


@given(COLUMNS)
def test_a_column_is_coded_as_the_standard_library_codes_values(drawn: tuple[list[bytes | None], int]) -> None:
    values, start = drawn
    column = pa.array(values, pa.binary()).slice(start)
    text = encode_base64(column)
    text.validate(full=True)

    assert text.to_pylist() == [None if each is None else base64.b64encode(each).decode() for each in values[start:]]
    decoded = decode_base64(text)
    decoded.validate(full=True)
    assert decoded.to_pylist() == values[start:]


@given(st.lists(st.text("AQz+/=", max_size=8), max_size=4))
@example(["AAAA="])  # the standard library takes padding that is too much
def test_texts_are_taken_that_are_base64_with_its_padding(texts: list[str]) -> None:
    is_base64 = all(BASE64.fullmatch(text) for text in texts)
    wanted = [base64.b64decode(text, validate=True) for text in texts] if is_base64 else None
    try:
        found = decode_base64(pa.array(texts, pa.string())).to_pylist()
    except MalformedError:
        found = None

    assert found == wanted


@table("text", ["A", "AQI", "====", "A===", "AQ=A", "AQ==AQI=", "AQ-_", "AQI=\n", "A Q="])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(MalformedError, match="no base64"):
        decode_base64(pa.array(["AQI=", text]))
