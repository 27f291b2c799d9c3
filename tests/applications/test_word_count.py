"""The words of a stream are counted exactly, also by programs that are killed; by Spark, too."""

import re

import pytest

from applications.word_count import __main__ as command

pytestmark = pytest.mark.slow


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the cells of the printed table by the name of the way."""
    lines = capsys.readouterr().out.splitlines()[1:]
    return {cells[0]: cells for cells in (re.split(r"  +", line.strip()) for line in lines)}


def test_a_reader_counts_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Behaviour 61: the counts and the place up to which they count are one commit."""
    command.main(["--ways", "reader", "--repeats", "1"])

    found = rows(capsys)
    assert list(found) == ["reader"]
    assert int(found["reader"][-1].replace(",", "")) > 100_000


@pytest.mark.spark
@pytest.mark.parametrize("way", ["words", "counts", "continued"])
def test_spark_counts_each_line_once(capsys: pytest.CaptureFixture[str], way: str) -> None:
    """Behaviours 55 and 67: the driver is killed with its JVM in the middle of the lines."""
    command.main(["--ways", way, "--repeats", "1", "--lines", "2000"])

    found = rows(capsys)
    assert list(found) == [way]
    assert int(found[way][-1].replace(",", "")) > 20_000


def test_a_word_that_was_counted_too_often_is_seen() -> None:
    """The check of the program can fail: a second counter that does not know of the first one."""
    import millrace
    from applications.word_count import text
    from millrace.examples.demo.data import Line

    with millrace.testing.server() as server, millrace.blocking.connect(server.address) as client:
        way = command.WAYS["words"]
        text.create(client, text.LINES, way.stream)
        text.write(client, [Line("a", "one two")])
        with client.writer(way.stream) as writer:
            writer.write_many([b"one", b"two", b"one"], key="a").result()
        with command.Counted(server.address, way) as counted:
            with pytest.raises(SystemExit, match=r"words: counted .'one': 2."):
                counted.wait_for_words(text.truth(client))
