"""The bytes of version 1 are what they were, in both directions.

A file in `v1/` is never written again once the version is released: what a change of the code does to it is a change of
the protocol, and takes a new version. Nothing in the repository generates them.
"""

from pathlib import Path
from typing import Any

import pytest

from millrace.wire import messages as m
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import decode, decode_header, encode, encode_append_header, verify
from tests.golden.samples import APPENDS, SAMPLES
from tests.support.tables import table

FOLDER = Path(__file__).parent / "v1"


def golden(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text(encoding="ascii"))


def test_there_are_bytes_for_every_type_of_frame() -> None:
    names = {cls.type.name.lower() for cls in m.MESSAGES.values()}

    assert {path.stem for path in FOLDER.iterdir()} == names
    assert {*SAMPLES, *APPENDS} == names


@table("name", SAMPLES)
def test_a_message_is_written_as_it_was(name: str) -> None:
    header = decode_header(golden(name))

    written = encode(SAMPLES[name], request_id=header.request_id, flags=header.flags)

    assert written.hex(" ") == golden(name).hex(" ")


@table("name", SAMPLES)
def test_a_message_is_read_as_it_was(name: str) -> None:
    data = golden(name)

    verify(memoryview(data))
    header, decoded = decode(data)

    assert decoded == SAMPLES[name]
    assert header.type == SAMPLES[name].type


@pytest.mark.parametrize("name", APPENDS)
def test_an_append_is_written_as_it_was(name: str) -> None:
    fields: dict[str, Any] = APPENDS[name]

    assert (encode_append_header(**fields) + fields["payload"]).hex(" ") == golden(name).hex(" ")


@pytest.mark.parametrize("name", APPENDS)
def test_an_append_is_read_as_it_was(name: str) -> None:
    data = bytearray(golden(name))
    run = scan_run(data, memoryview(data), start=0, end=len(data))

    assert run is not None
    read = {field: getattr(run, field) for field in APPENDS[name] if field != "payload"}
    assert {**read, "payload": bytes(run.frames[run.header_size :])} == APPENDS[name]
    assert (run.frames, run.frame_count, run.frame_size) == (data, 1, len(data))
