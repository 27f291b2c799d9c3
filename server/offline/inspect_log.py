"""A log file for people: its header, its batches, the runs and frames in them, and its ending."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES, BLOCK_MAGIC, BlockHeader
from millrace.model.figures import count_text, time_text
from millrace.server.host.files import OsFileSystem
from millrace.server.wal import Damage, RecoveredBatch, Recovery
from millrace.server.wal.batch import decode_runs
from millrace.server.wal.log_head import log_head_of
from millrace.server.wal.log_objects import decode_log_object, parse_log_name
from millrace.server.wal.logfile import log_file_name, log_file_number
from millrace.wire import messages as m
from millrace.wire.append_run import KIND_APPENDS, AppendRun
from millrace.wire.limits import FRAME_HEADER_SIZE_BYTES
from millrace.wire.schema.frame import FrameHeader
from millrace.wire.schema.log import LOG_FILE_MAGIC, BatchHeader, LogFileHeader, RunEntry
from millrace.wire.schema.newest import NEWEST_SLOT_MAGIC, NEWEST_SLOT_SIZE_BYTES, NewestSlot

from .declared import DeclaredField, field_section, problems_of, read_fields, values_of
from .report import Report, Section

NEWEST_MAGIC: Final = NEWEST_SLOT_MAGIC
MAGIC: Final = LOG_FILE_MAGIC.to_bytes(4, "little")
_BATCH_COLUMNS: Final = ("offset", "size", "sequence", "time", "runs", "frames", "events", "holds")
RUNS_SHOWN: Final = 2
"""Runs shown in the line of a batch; `--hex` and `--json` have all."""
FRAMES_SHOWN: Final = 16
"""Frames of a run that `--hex` decodes."""


def inspect_log(path: Path, *, with_hex: bool, at: int, limit: int) -> Report:
    """Return the content of one log file.

    Args:
        with_hex: decode every structure field by field.
        at: skip batches before this offset.
        limit: most batches shown, 0 for all.
    """
    data = path.read_bytes()
    header = read_fields(LogFileHeader, data[: LogFileHeader.sizeof()], offset=0)
    values = values_of(header)
    report = Report("log file", str(path), problems=problems_of(header, what="file header"), limit=limit)
    report.facts |= {"size": len(data), **{name: value for name, value in values.items() if name != "magic"}}
    if "file_number" in values:
        report.facts["server_id"] = UUID(bytes=values["server_id"])
    if with_hex:
        report.sections.append(field_section("header", "file header", header))
    batches: list[RecoveredBatch] = []
    with TemporaryDirectory(prefix="millrace-log-") as folder:
        # Under the name from its header, so that a copy under another name can be read.
        named = Path(folder) / log_file_name(_number(path, values))
        named.symlink_to(path.resolve())
        reading = Recovery(OsFileSystem(), [named], owner=None)
        for item in reading.batches():
            if isinstance(item, Damage):
                size = count_text(item.size, "byte")
                report.problems.append(f"byte {item.offset}, {size}: {item.reason}{_lost(item)}")
            elif item.offset >= at:
                batches.append(item)
    report.add_table("batches", "batches", _BATCH_COLUMNS, [_batch_row(batch) for batch in batches])
    if with_hex:
        for batch in batches[: limit or None]:
            report.sections += _batch_sections(data, batch)
    found = reading.report
    report.facts |= {
        "batch_count": found.batch_count,
        "sequences": f"{found.first_sequence} to {found.last_sequence}" if found.batch_count else "",
        "ending": found.ending.value,
        "end_offset": found.end_offset,
    }
    if found.torn_bytes:
        report.facts["torn_bytes"] = found.torn_bytes
    return report


def inspect_log_object(path: Path, *, with_hex: bool, limit: int) -> Report:
    """Return the content of one object of a log in an object store; its path ends with its epoch and its sequence."""
    data = path.read_bytes()
    point = parse_log_name("/".join(path.parts[-2:]))
    assert point is not None
    header = read_fields(LogFileHeader, data[: LogFileHeader.sizeof()], offset=0)
    values = values_of(header)
    found = decode_log_object(data, point, owner=None, place=str(path))
    kind = "fence: the end of its epoch" if found.is_fence else "object of a log"
    report = Report(kind, str(path), problems=problems_of(header, what="header"), limit=limit)
    report.facts |= {"size": len(data), **{name: value for name, value in values.items() if name != "magic"}}
    if "server_id" in values:
        report.facts["server_id"] = UUID(bytes=values["server_id"])
    if with_hex:
        report.sections.append(field_section("header", "header", header))
    if found.is_fence:
        return report
    batch = found.batch
    if batch is None:
        report.problems.append(f"batch {point.sequence} of epoch {point.epoch} is damaged or missing in it")
        return report
    runs = [run for run, _ in decode_runs(found.data, batch)]
    shown = RecoveredBatch(batch.sequence, batch.wall_time_us, runs, point.name, batch.offset, batch.size)
    report.add_table("batches", "batches", _BATCH_COLUMNS, [_batch_row(shown)])
    if with_hex:
        report.sections += _batch_sections(data, shown)
    return report


def inspect_newest(path: Path) -> Report:
    """Return the log file named as the newest, and the content of each slot of the log head."""
    data = path.read_bytes()
    newest = log_head_of(data)
    report = Report("name of the newest log file", str(path), facts={"size": len(data)})
    if newest.named is None:
        report.problems.append("no slot matches its checksum")
    else:
        report.facts |= {"newest": log_file_name(newest.named.number), "salt": newest.named.salt}
    for index, named in enumerate(newest.slots):
        offset = index * NEWEST_SLOT_SIZE_BYTES
        fields = read_fields(NewestSlot, data[offset : offset + NewestSlot.sizeof()], offset=offset)
        title = f"slot {index}: {log_file_name(named.number) if named else 'names nothing'}"
        report.sections.append(field_section(f"slot_{index}", title, fields))
    return report


def _number(path: Path, header: dict[str, Any]) -> int:
    """Return the expected number of the file: from its name if valid, else from its header."""
    named = log_file_number(path.name)
    if named is not None:
        return named
    number = header.get("file_number", 1)
    return number if isinstance(number, int) and number < 10**16 else 1


def _batch_row(batch: RecoveredBatch) -> list[Any]:
    return [
        batch.offset,
        batch.size,
        batch.sequence,
        time_text(batch.wall_time_us),
        len(batch.runs),
        sum(run.frame_count for run in batch.runs),
        sum(run.event_count for run in batch.runs),
        _holds(batch),
    ]


def _holds(batch: RecoveredBatch) -> str:
    """Return a short description of a batch."""
    if not batch.runs:
        return "end of the log, closed in order"
    texts = [_run_text(run) for run in batch.runs[:RUNS_SHOWN]]
    if len(batch.runs) > RUNS_SHOWN:
        texts.append(f"+{len(batch.runs) - RUNS_SHOWN} runs")
    return ", ".join(texts)


def _run_text(run: AppendRun) -> str:
    if run.kind == KIND_APPENDS:
        writer = f" of writer {run.writer_number}" if run.writer_number else ""
        sequences = f" sequences {run.sequences.first} to {run.sequences.last}" if run.sequences else ""
        return f"segment {run.segment_id} [{run.offset}, {run.offset + run.payload_size}){writer}{sequences}"
    return _type_name(run.frames[8])


def _type_name(number: int) -> str:
    cls = m.MESSAGES.get(number)
    return cls.type.name if cls else f"type {number}"


def _lost(damage: Damage) -> str:
    texts = [f"segment {segment_id} [{offset}, {offset + size})" for segment_id, offset, size in damage.runs]
    return f"; lost: {', '.join(texts)}" if texts else "" if damage.is_complete else "; the loss is unknown"


def _batch_sections(data: bytes, batch: RecoveredBatch) -> Iterator[Section]:
    """Lay out a batch: its header, its run table, and the frames of each run."""
    position = batch.offset
    header = read_fields(BatchHeader, data[position : position + BatchHeader.sizeof()], offset=position)
    where = f"batch {batch.sequence}"
    yield field_section(f"batch_{batch.sequence}_header", f"{where}: header", header)
    position += BatchHeader.sizeof()
    entries = []
    for _ in range(values_of(header)["run_count"]):
        entries.append(read_fields(RunEntry, data[position : position + RunEntry.sizeof()], offset=position))
        position += RunEntry.sizeof()
    for index, entry in enumerate(entries):
        name = f"batch_{batch.sequence}_run_{index}"
        yield field_section(name, f"{where}: run {index}", entry)
        size = values_of(entry)["frames_size"]
        yield from _frame_sections(
            data[position : position + size], offset=position, name=name, title=f"{where}: run {index}"
        )
        position += size


def _frame_sections(frames: bytes, *, offset: int, name: str, title: str) -> Iterator[Section]:
    position = index = 0
    while position < len(frames):
        fields = frame_fields(frames[position:], offset=offset + position)
        length = fields[0].value
        if not isinstance(length, int) or length < FRAME_HEADER_SIZE_BYTES or index == FRAMES_SHOWN:
            return
        kind = _type_name(frames[position + 8])
        yield field_section(f"{name}_frame_{index}", f"{title}, frame {index}: {kind}", fields)
        position += length
        index += 1


def frame_fields(data: bytes, *, offset: int) -> list[DeclaredField]:
    """Return the fields of the frame that `data` starts with: its header, then the body that its type declares."""
    length = int.from_bytes(data[:4], "little")
    frame = data[:length]
    fields = read_fields(FrameHeader, frame[:FRAME_HEADER_SIZE_BYTES], offset=offset)
    message = m.MESSAGES.get(frame[8]) if len(frame) > FRAME_HEADER_SIZE_BYTES else None
    if message is not None:
        body = frame[FRAME_HEADER_SIZE_BYTES:]
        fields += read_fields(message.layout, body, offset=offset + FRAME_HEADER_SIZE_BYTES)
    if fields[-1].name == "payload":
        payload = fields.pop()
        fields += payload_fields(payload.raw, offset=payload.offset)
    return fields


def payload_fields(payload: bytes, *, offset: int) -> list[DeclaredField]:
    """Return the fields of an event block, or the payload as one field if it is not one."""
    if not payload.startswith(BLOCK_MAGIC) or len(payload) < BLOCK_HEADER_SIZE_BYTES:
        return [DeclaredField(offset, "payload", payload, payload)]
    block = read_fields(BlockHeader, payload[:BLOCK_HEADER_SIZE_BYTES], offset=offset)
    columns = payload[BLOCK_HEADER_SIZE_BYTES:]
    named = [replace(field, name=f"block.{field.name}") for field in block]
    return [*named, DeclaredField(offset + BLOCK_HEADER_SIZE_BYTES, "block columns", columns, columns)]
