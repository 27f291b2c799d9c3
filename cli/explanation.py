"""`millrace stream explain`: the state of a stream's policies, and what they wait for."""

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from millrace.model.figures import rate_text, size_text, time_text
from millrace.model.policy import StreamConfig

from .connecting import JsonOption, ServerTarget, StreamArgument
from .output import print_facts, print_json, print_table, print_text
from .policies import retention_text, scaling_text


def explain(server: ServerTarget, stream: StreamArgument, as_json: JsonOption = False) -> None:
    """Show what the policies of a stream measure, last decided and wait for, and which cursor retains which bytes.

    For a stream without a scaling policy, rates are measured from the first such request on.
    """
    with server.connect() as client:
        facts = client.explain_stream(stream)
    if as_json:
        print_json(facts)
        return
    print_explanation(facts)


def print_explanation(facts: dict[str, Any]) -> None:
    """Print the server's explanation of a stream."""
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
        segments,
        {
            "segment_id": "segment",
            "low": "keys from",
            "high": "to",
            "size_bytes": "size",
            "events_per_s": "events",
            "bytes_per_s": "bytes",
            "remark": "what it waits for",
        },
    )
    _print_section("last scalings", facts["scalings"], {"at_us": "at", "epoch": "epoch", "reason": "reason"})
    _print_section(
        "last truncations", facts["truncations"], {"at_us": "at", "size_bytes": "dropped", "reason": "reason"}
    )
    names = {"name": "name", "saved_us": "saved", "unread_bytes": "not read yet", "holds_bytes": "held by it alone"}
    _print_section("cursors", facts["cursors"], names)
    if facts["retention"]:
        print_text("")
        print_text(Text("retention", style="bold"))
    for remark in facts["retention"]:
        print_text(f"  {remark}")


def _print_section(title: str, records: Sequence[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print records as a table. Their names determine how values are formatted."""
    if records:
        print_text("")
        print_table(
            list(columns.values()),
            [[_value_text(name, record.get(name, 0)) for name in columns] for record in records],
            title=title,
            right=[column for name, column in columns.items() if name.endswith(("_bytes", "_per_s"))],
        )


def _value_text(name: str, value: Any) -> Any:
    if name.endswith("_us"):
        return time_text(value)
    if name.endswith("_bytes"):
        return size_text(value)
    if name == "bytes_per_s":
        return f"{size_text(value)}/s"
    if name == "events_per_s":
        return rate_text(value)
    return f"{value:.4f}" if name in ("low", "high") else value
