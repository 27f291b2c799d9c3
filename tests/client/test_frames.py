"""Tables of polars and pandas, on a real server."""

import sys
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest

import millrace
from millrace import blocking
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.model.cut import chosen
from millrace.model.errors import InvalidArgumentError
from millrace.model.slice import Slice

PLAIN = ["value", "key", "timestamp", "segment", "offset", "index", "headers"]


@pytest.fixture
def shop(server: TestServer) -> Iterator[blocking.Client]:
    with blocking.connect(server.address) as connected:
        yield connected


@pytest.fixture
def orders(shop: blocking.Client, name: str) -> str:
    """A stream of two segments with four orders; a bookmark `half` is after two of them."""
    shop.create_stream(name, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    for amounts in ((1, 2), (3, None)):
        with shop.writer(name) as writer:
            for amount in amounts:
                text = "null" if amount is None else str(amount)
                writer.write(b'{"amount": %s}' % text.encode(), key=f"k{amount}", headers={"h": b"1"})
        if amounts == (1, 2):
            shop.bookmarks(name).save("half")
    return name


def test_a_part_of_a_stream_as_a_table_of_polars(shop: blocking.Client, orders: str) -> None:
    frame = shop.to_polars(orders, json=True)
    assert frame.schema["amount"] == pl.Int64
    assert sorted(frame["amount"].to_list(), key=str) == [1, 2, 3, None]
    assert frame["_headers"].len() == 4
    assert shop.to_polars(orders, end="bookmark:half")["key"].sort().to_list() == ["k1", "k2"]
    assert shop.to_polars(orders, key="k3").columns == PLAIN
    assert shop.to_polars(orders, key="k3").height == 1


def test_a_part_of_a_stream_as_a_table_of_pandas(shop: blocking.Client, orders: str) -> None:
    frame = shop.to_pandas(orders, json=pa.schema([("amount", pa.int64())]))
    assert str(frame.dtypes["amount"]) == "int64[pyarrow]"
    assert frame["amount"].sum() == 6
    assert list(shop.to_pandas([orders]).columns) == [*PLAIN, "stream"]
    assert len(shop.to_pandas(Slice(orders, start=chosen("bookmark:half")))) == 2


def test_a_stream_without_events_is_a_table_with_columns(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    assert shop.to_polars(name).columns == PLAIN
    assert list(shop.to_pandas(name).columns) == PLAIN


@pytest.mark.asyncio
async def test_the_async_client_makes_the_same(client: Client, orders: str) -> None:
    assert (await client.to_polars(orders, json=True))["amount"].sum() == 6
    assert (await client.to_pandas(orders, json=True))["amount"].sum() == 6


def test_a_table_has_an_end(shop: blocking.Client, orders: str) -> None:
    with pytest.raises(InvalidArgumentError, match="never be whole"):
        shop.to_polars(Slice(orders, end=None))
    with pytest.raises(InvalidArgumentError, match="never be whole"):
        shop.to_polars(orders, end=None)  # type: ignore[arg-type]  # as a caller may who uses no type checker


def test_a_value_that_does_not_parse_is_named(shop: blocking.Client, orders: str) -> None:
    with pytest.raises(millrace.ValueMalformedError, match=r"segment .* offset"):
        shop.to_pandas(orders, json=pa.schema([("amount", pa.string())]))


@pytest.mark.parametrize(("package", "extra"), [("polars", "polars"), ("pandas", "pandas"), ("pyarrow", "arrow")])
def test_what_is_missing_is_named_with_its_extra(
    shop: blocking.Client, orders: str, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "millrace.client.read.arrow_reader", raising=False)
    make = shop.to_pandas if package == "pandas" else shop.to_polars
    with pytest.raises(millrace.MissingExtraError, match=rf"pip install 'millrace-streams\[{extra}\]'"):
        make(orders)


def test_streams_histories_and_cuts_are_tables_in_a_notebook(shop: blocking.Client, orders: str) -> None:
    info = shop.stream_info(orders)
    shop.scale_stream(orders, seal=[each.segment_id for each in info.open_segments], ranges=[(0, 1)])
    shop.bookmarks(orders).save("<script>alert(1)</script>")

    info = shop.stream_info(orders)
    assert f"{orders}: open" in info._repr_html_()
    assert info._repr_html_().count("<tr>") == 1 + 3
    history = shop.stream_history(orders)
    assert "0 to 0.5" in history._repr_html_()
    assert history._repr_html_().count("<tr>") == 1 + 2
    cuts = shop.bookmarks(orders).list()._repr_html_()
    assert cuts.count("<tr>") == 1 + 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in cuts
    assert "<script>" not in cuts
    assert f"cut of {orders}" in shop.stream_cut(orders)._repr_html_()
