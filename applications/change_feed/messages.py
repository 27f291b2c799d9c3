"""Server-sent events as they are received: lines become messages, as the HTML standard says."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """A message that has content.

    Attributes:
        last_id: where to continue, to be sent as `Last-Event-ID`.
        event: its kind; `message` if it says none.
    """

    last_id: str
    event: str
    data: str

    def content(self) -> dict[str, Any]:
        """Return the content of a message of Millrace."""
        content: dict[str, Any] = json.loads(self.data)
        return content


class Messages:
    """Reads messages from lines.

    Attributes:
        last_id: the place after what was read last, also where that had no content.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id

    def read(self, lines: Iterable[bytes]) -> Iterator[Message]:
        """Yield the messages of lines, each with its end; what is not ended by an empty line is dropped."""
        last_id, event, data = self.last_id, "", list[str]()
        for line in lines:
            if not line.endswith(b"\n"):
                return
            text = line.decode().rstrip("\r\n")
            if not text:
                self.last_id = last_id
                if data:
                    yield Message(last_id, event or "message", "\n".join(data))
                event, data = "", []
                continue
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if name == "id" and "\0" not in value:
                last_id = value
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)
