"""Addresses of a server and of its standbys: host and port, as values and as text."""

import re
from dataclasses import dataclass
from typing import Final

from .errors import InvalidArgumentError

PORT_MAX: Final = (1 << 16) - 1

_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[^][\s]+)]|(?P<host>[^][:\s]*))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int) -> "Address":
        """Parse an address: `host`, `host:port`, `:port` (without a host) or `[v6]:port`.

        Raises:
            InvalidArgumentError: the text has none of these forms.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not match[0] or int(match["port"] or default_port) > PORT_MAX:
            raise InvalidArgumentError(
                f"{text!r} is not an address: write HOST:PORT, or [IPV6]:PORT, with a port up to {PORT_MAX}"
            )
        return cls(match["v6"] or match["host"], int(match["port"] or default_port))


@dataclass(frozen=True, slots=True)
class Addresses:
    """All addresses of one server and of its standbys.

    Attributes:
        members: at least one, without duplicates.
    """

    members: tuple[Address, ...]

    def __post_init__(self) -> None:
        assert self.members, "a server has at least one address"
        assert len(set(self.members)) == len(self.members)

    def __str__(self) -> str:
        return ",".join(map(str, self.members))

    def beginning_with(self, first: Address) -> tuple[Address, ...]:
        """Return all addresses in turn, beginning with one of them."""
        index = self.members.index(first)
        return self.members[index:] + self.members[:index]
