"""`millrace stream explain`: why a stream is as it is, and what it waits for."""

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from millrace.model.policy import StreamConfig

from .connecting import JsonOption, Server, StreamArgument
from .figures import rate_text, size_text, time_text
from .output import print_facts, print_json, print_table, print_text
from .policies import retention_text, scaling_text


def explain(server: Server, stream: StreamArgument, as_json: JsonOption = False) -> None:
    """Show what the policies of a stream see, decided last and wait for, and which cursor holds which bytes.

    The rates of a stream that scales by hand only are measured from the first such request on.
    """
    with server.connect() as client:
        facts = client.explain_stream(stream)
    if as_json:
        print_json(facts)
        return
    print_explanation(facts)


def print_explanation(facts: dict[str, Any]) -> None:
    """Print what a server says of a stream."""
    policy = StreamConfig.from_json(json.dumps(facts["policy"]))
    segments = sorted(facts["segments"], key=lambda segment: float(segment["low"]))
    print_facts(
        {
            "stream": f"{facts['stream']}, sealed" if facts["sealed"] else facts["stream"],
            "scaling": scaling_text(policy.scaling),
            "retention": retention_text(policy.retention),
            **({"tags": ", ".join(policy.tags)} if policy.tags else {}),
            "size": size_text(facts["size_bytes"]),
            "epoch": facts["epoch"],
        }
    )
    _print_section(
        "open segments",
        ("segment", "keys from", "to", "size", "events", "bytes", "what it waits for"),
        [
            (
                segment["segment_id"],
                f"{segment['low']:.4f}",
                f"{segment['high']:.4f}",
                size_text(segment["size_bytes"]),
                rate_text(segment.get("events_per_s", 0.0)),
                f"{size_text(segment.get('bytes_per_s', 0.0))}/s",
                segment["remark"],
            )
            for segment in segments
        ],
        right=("size", "events", "bytes"),
    )
    _print_section(
        "last scalings",
        ("at", "epoch", "reason"),
        [(time_text(scaling["at_us"]), scaling["epoch"], scaling["reason"]) for scaling in facts["scalings"]],
    )
    _print_section(
        "last truncations",
        ("at", "dropped", "reason"),
        [
            (time_text(truncation["at_us"]), size_text(truncation["size_bytes"]), truncation["reason"])
            for truncation in facts["truncations"]
        ],
        right=("dropped",),
    )
    _print_section(
        "cursors",
        ("name", "saved", "not read yet", "held by it alone"),
        [
            (
                cursor["name"],
                time_text(cursor["saved_us"]),
                size_text(cursor["unread_bytes"]),
                size_text(cursor["holds_bytes"]),
            )
            for cursor in facts["cursors"]
        ],
        right=("not read yet", "held by it alone"),
    )
    if facts["retention"]:
        print_text("")
        print_text(Text("retention", style="bold"))
    for remark in facts["retention"]:
        print_text(f"  {remark}")


def _print_section(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    if rows:
        print_text("")
        print_table(columns, rows, title=title, right=right)
