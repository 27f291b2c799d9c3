"""A chunk of tier 2 for people: its summary, its index, its pages, and the event blocks in its payload."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from construct import GreedyRange

from millrace.model.block_layout import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    FLAG_COMPRESSED,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_TIMESTAMPS,
    BlockHeader,
)
from millrace.model.checksum import crc32c
from millrace.model.figures import time_text
from millrace.server.tier2 import ANY_TIMES, ChunkId, chunk_name, parse_chunk_name
from millrace.wire.schema.chunk import CHUNK_MAGIC, ChunkIndexEntry, ChunkSummary, PageChecksum

from .declared import field_section, hex_dump, problems_of, read_fields, values_of
from .report import Report, Section

MAGIC: Final = CHUNK_MAGIC.to_bytes(4, "little")
SUMMARY_SIZE: Final = ChunkSummary.sizeof()
DUMPED_BYTES: Final = 256


def inspect_chunk(path: Path, *, with_hex: bool, at: int, limit: int) -> Report:
    """Return the content of a chunk.

    Args:
        with_hex: show bytes, too.
        at: skip content before this offset of the segment.
        limit: most rows of each table, 0 for all.
    """
    data = path.read_bytes()
    report = Report("chunk", str(path), limit=limit)
    head = read_fields(ChunkSummary, data[:SUMMARY_SIZE], offset=0)
    foot_offset = max(0, len(data) - SUMMARY_SIZE)
    foot = read_fields(ChunkSummary, data[foot_offset:], offset=foot_offset)
    is_head_good, is_foot_good = _is_good(data[:SUMMARY_SIZE]), _is_good(data[foot_offset:])
    if not is_head_good:
        report.problems.append("byte 0: the summary does not match its checksum")
    if not is_foot_good:
        report.problems.append(f"byte {foot_offset}: the summary at the end does not match its checksum")
    fields = foot if is_foot_good else head
    report.problems += problems_of(fields, what="summary")
    summary = values_of(fields)
    report.facts |= {"size": len(data), **{name: value for name, value in summary.items() if name != "magic"}}
    if with_hex:
        report.sections.append(field_section("summary", "summary", fields))
    if not (is_head_good or is_foot_good):
        return report
    report.problems += _identity_problems(path.name, summary)
    if not summary["page_size"]:
        report.problems.append("the summary is invalid: pages of 0 bytes")
        return report
    payload_end = SUMMARY_SIZE + summary["length"]
    index_end = payload_end + summary["index_count"] * ChunkIndexEntry.sizeof()
    page_count = -(-summary["length"] // summary["page_size"])
    size = index_end + page_count * PageChecksum.sizeof() + SUMMARY_SIZE
    if len(data) != size:
        report.problems.append(f"byte {min(size, len(data))}: the file has {len(data)} bytes, {size} were published")
        return report
    _add_index(report, data[payload_end:index_end], payload_end, summary, at=at)
    _add_pages(report, data, index_end, summary)
    payload = data[SUMMARY_SIZE:payload_end]
    if payload.startswith(BLOCK_MAGIC):
        _add_blocks(report, payload, summary["start_offset"], at=at)
    if with_hex:
        start = max(0, at - summary["start_offset"])
        dump = hex_dump(payload[start : start + DUMPED_BYTES], offset=SUMMARY_SIZE + start)
        rest = max(0, len(payload) - start - DUMPED_BYTES)
        title = f"payload from segment offset {summary['start_offset'] + start}" + (
            f", {rest} bytes more" if rest else ""
        )
        report.sections.append(Section("payload", title, ("offset", "hex", "text"), dump))
    return report


def _is_good(summary: bytes) -> bool:
    return len(summary) == SUMMARY_SIZE and crc32c(summary[:-4]).to_bytes(4, "little") == summary[-4:]


def _identity_problems(name: str, summary: dict[str, Any]) -> list[str]:
    """Return the problem if a file has the name of another chunk; a name of another form is fine."""
    promised = parse_chunk_name(f"segments/{name[14:16]}/{name}")
    if promised is None or all(summary[field] == value for field, value in asdict(promised).items()):
        return []
    held = ChunkId(**{field: summary[field] for field in asdict(promised)})
    return [f"the file contains {chunk_name(held)}, not the chunk in its name"]


def _add_index(report: Report, table: bytes, start: int, summary: dict[str, Any], *, at: int) -> None:
    if crc32c(table) != summary["index_checksum"]:
        report.problems.append(f"byte {start}: the index does not match its checksum")
    rows = []
    for entry in GreedyRange(ChunkIndexEntry).parse(table):
        if entry.offset >= at:
            times = [_event_time(entry.timestamp_us_min), _event_time(entry.timestamp_us_max)]
            rows.append([entry.offset, entry.events, time_text(entry.wall_time_us), *times])
    columns = ("segment offset", "events before", "time", "least event time", "greatest event time")
    report.add_table("index", "sparse index", columns, rows)


def _event_time(timestamp_us: int) -> str:
    """Return an event time as text; the bounds of the type mean no time or any time."""
    return "" if abs(timestamp_us) >= ANY_TIMES.max_us else time_text(timestamp_us)


def _add_pages(report: Report, data: bytes, start: int, summary: dict[str, Any]) -> None:
    """Check and show each page."""
    rows = []
    page_size, length = summary["page_size"], summary["length"]
    checksums = GreedyRange(PageChecksum).parse(data[start:-SUMMARY_SIZE])
    for page, offset in enumerate(range(0, length, page_size)):
        content = data[SUMMARY_SIZE + offset : SUMMARY_SIZE + min(offset + page_size, length)]
        stored = checksums[page].checksum
        is_good = crc32c(content) == stored
        if not is_good:
            report.problems.append(
                f"byte {SUMMARY_SIZE + offset}: page {page} does not match its checksum; segment offsets "
                f"[{summary['start_offset'] + offset}, {summary['start_offset'] + offset + len(content)}) are refused"
            )
        rows.append([page, SUMMARY_SIZE + offset, len(content), f"{stored:#010x}", "good" if is_good else "DAMAGED"])
    report.add_table("pages", "pages", ("page", "offset", "size", "checksum", "is"), rows)


def _add_blocks(report: Report, payload: bytes, start_offset: int, *, at: int) -> None:
    rows = []
    position = 0
    while position + BLOCK_HEADER_SIZE_BYTES <= len(payload):
        fields = read_fields(
            BlockHeader, payload[position : position + BLOCK_HEADER_SIZE_BYTES], offset=SUMMARY_SIZE + position
        )
        block = values_of(fields)
        problems = problems_of(fields, what="event block")
        if problems or block["size"] < BLOCK_HEADER_SIZE_BYTES:
            report.problems += problems or [f"byte {SUMMARY_SIZE + position}: an event block of {block['size']} bytes"]
            break
        if start_offset + position >= at:
            rows.append(
                [
                    start_offset + position,
                    block["size"],
                    block["event_count"],
                    block["first_event_number"] or None,
                    _block_has(block["flags"]),
                    time_text(block["timestamp_us_min"]) if block["flags"] & FLAG_TIMESTAMPS else "",
                ]
            )
        position += block["size"]
    columns = ("segment offset", "size", "events", "first number", "has", "first timestamp")
    report.add_table("blocks", "event blocks", columns, rows)


def _block_has(flags: int) -> str:
    names = {FLAG_KEYS: "keys", FLAG_TIMESTAMPS: "timestamps", FLAG_HEADERS: "headers", FLAG_COMPRESSED: "compressed"}
    return ", ".join(name for flag, name in names.items() if flags & flag)
