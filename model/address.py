"""Where a server is: host and port, as values and as text; and where else, if something takes its place."""

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
        """Return the address in `host`, `host:port`, `:port` (of no host) or `[v6]:port`.

        Raises:
            InvalidArgumentError: the text is none of these.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not match[0] or int(match["port"] or default_port) > PORT_MAX:
            raise InvalidArgumentError(
                f"{text!r} is no address: write HOST:PORT, or [IPV6]:PORT, with a port up to {PORT_MAX}"
            )
        return cls(match["v6"] or match["host"], int(match["port"] or default_port))


@dataclass(frozen=True, slots=True)
class Addresses:
    """All addresses under which one server may be found: of a server, and of those that take its place.

    Attributes:
        members: at least one, none of them twice.
    """

    members: tuple[Address, ...]

    def __post_init__(self) -> None:
        assert self.members, "a server is somewhere"
        assert len(set(self.members)) == len(self.members)

    def __str__(self) -> str:
        return ",".join(map(str, self.members))

    def beginning_with(self, first: Address) -> tuple[Address, ...]:
        """Return all of them in turn, from one of them on."""
        index = self.members.index(first)
        return self.members[index:] + self.members[:index]
