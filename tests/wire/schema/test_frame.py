import re

from millrace.wire import messages as m
from millrace.wire.framing import decode, encode, verify
from millrace.wire.schema import frame
from millrace.wire.schema.frame import FrameHeader


def example() -> bytes:
    """The frame in the docstring of the protocol."""
    assert frame.__doc__ is not None
    return bytes.fromhex(re.sub(r"\s", "", frame.__doc__.partition("Example")[2].partition(":")[2]))


def test_the_example_in_the_docstring_is_the_ping_it_says() -> None:
    data = example()

    verify(memoryview(data))
    header, message = decode(data)
    assert message == m.Ping()
    assert header.request_id == 7
    assert encode(m.Ping(), request_id=7) == data
    assert FrameHeader.parse(data).type == m.Ping.type


def test_the_tables_in_the_docstring_are_the_headers_declared() -> None:
    assert frame.__doc__ is not None
    tables = frame.__doc__.partition("Example")[0]
    rows = [match.groups() for match in re.finditer(r"^    (\d+) +(\d+) +(\w+)", tables, re.MULTILINE)]
    offset, declared = 0, []
    for subcon in m.SequencedAppendHeader.subcons:
        declared.append((str(offset), str(subcon.sizeof()), subcon.name.removesuffix("_tail")))
        offset += subcon.sizeof()

    assert rows == declared
    names = [subcon.name for subcon in m.SequencedAppendHeader.subcons]
    assert [subcon.name for subcon in FrameHeader.subcons] == names[:7]
    assert [subcon.name for subcon in m.AppendHeader.subcons] == names[:-3]
