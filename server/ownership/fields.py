"""Reads the fields of a JSON object by type, so that each error names the field and its valid values.

Manifests, leases and claims of folders are such objects: small, in ASCII, without unknown fields. The last field is
`checksum`, 8 hexadecimal digits: the CRC-32C of the object as it is written without this field. An object without a
checksum is from an earlier version.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

from millrace.model.checksum import crc32c
from millrace.wire.limits import KIB

SIZE_BYTES_MAX: Final = 64 * KIB
"""Of an object. The longest have the path of a folder twice, each of at most 4096 bytes and 5 characters for each."""
TEXT_SIZE_MAX: Final = 24 * KIB
NUMBER_MAX: Final = 2**63 - 1
CHECKSUM_NAME: Final = "checksum"


class Fields:
    """The fields of a decoded object.

    All methods raise ValueError; its text continues the name of the object.
    """

    def __init__(self, content: object, *, path: str = "") -> None:
        """Take the decoded value, and its path in the whole: empty, or a name with a dot at its end."""
        if not isinstance(content, dict):
            raise ValueError(f"{path.removesuffix('.') or 'it'} is {_shown(content)}; it must be an object")
        self._content = content
        self._path = path
        self._asked: set[str] = set()

    @classmethod
    def decode(cls, content: bytes, *, version: int) -> Self:
        """Return the fields of an object in a format version, which is a field itself."""
        if len(content) > SIZE_BYTES_MAX:
            raise ValueError(f"it has {len(content)} bytes; it must have at most {SIZE_BYTES_MAX}")
        try:
            fields = cls(json.loads(content))
        except RecursionError as error:
            raise ValueError("its values are nested too deeply") from error
        except ValueError as error:  # syntax errors, encoding errors, and the errors above
            raise ValueError(f"it is not a JSON object: {error}") from error
        if fields.has(CHECKSUM_NAME) and not has_checksum(content):
            raise ValueError(f"it does not match its checksum, {_shown(fields._value(CHECKSUM_NAME))}")
        fields._asked.add(CHECKSUM_NAME)
        written = fields.number("format_version")
        if written != version:
            raise ValueError(f"it is in format {written}; this version knows format {version} only")
        return fields

    def number(self, name: str, *, least: int = 0) -> int:
        """Return a whole number."""
        value = self._value(name)
        if type(value) is not int or not least <= value <= NUMBER_MAX:
            raise self._wrong(name, f"a whole number of at least {least}")
        return value

    def seconds(self, name: str, *, least: float, most: float) -> float:
        """Return a duration."""
        value = self._value(name)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self._wrong(name, f"a number of seconds from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str) -> str:
        """Return a text."""
        value = self._value(name)
        if not isinstance(value, str) or len(value) > TEXT_SIZE_MAX:
            raise self._wrong(name, f"a text of at most {TEXT_SIZE_MAX} characters")
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a text, or None for null."""
        return None if self._value(name) is None else self.text(name)

    def time(self, name: str) -> str:
        """Return a time in UTC, as it is written (see `utc_text`)."""
        text = self.text(name)
        try:
            zone = datetime.fromisoformat(text).utcoffset()
        except ValueError:
            zone = None
        if zone is None or zone:
            raise self._wrong(name, "a time in UTC, such as 2026-01-31T12:00:00+00:00")
        return text

    def uuid(self, name: str) -> UUID:
        """Return a UUID."""
        found = self._uuid_of(self._value(name))
        if found is None:
            raise self._wrong(name, "a UUID")
        return found

    def uuid_or_none(self, name: str) -> UUID | None:
        """Return a UUID, or None for null."""
        return None if self._value(name) is None else self.uuid(name)

    def uuids(self, name: str, *, count_max: int) -> tuple[UUID, ...]:
        """Return UUIDs."""
        value = self._value(name)
        found = [self._uuid_of(each) for each in value] if isinstance(value, list) else [None]
        known = tuple(each for each in found if each is not None)
        if len(known) != len(found) or len(known) > count_max:
            raise self._wrong(name, f"a list of at most {count_max} UUIDs")
        return known

    def inside(self, name: str) -> "Fields":
        """Return the fields of an object inside."""
        return Fields(self._value(name), path=f"{self._path}{name}.")

    def inside_or_none(self, name: str) -> "Fields | None":
        """Return the fields of a nested object, or None for null."""
        return None if self._value(name) is None else self.inside(name)

    def has(self, name: str) -> bool:
        """Return whether the object has a field that earlier versions of this format lack."""
        return name in self._content

    def end(self) -> None:
        """Raise if the object has fields that were not read."""
        others = sorted(self._content.keys() - self._asked)
        if others:
            raise ValueError(f"{self._path}{others[0]} is not a field that this version knows")

    def _value(self, name: str) -> Any:
        self._asked.add(name)
        if name not in self._content:
            raise ValueError(f"{self._path}{name} is missing")
        return self._content[name]

    def _wrong(self, name: str, right: str) -> ValueError:
        return ValueError(f"{self._path}{name} is {_shown(self._content[name])}; it must be {right}")

    @staticmethod
    def _uuid_of(value: object) -> UUID | None:
        try:
            found = UUID(value) if isinstance(value, str) else None
        except ValueError:
            return None
        # Each value has one valid spelling, so that it is written again as it was read.
        return found if str(found) == value else None


def encode_fields(content: dict[str, object]) -> bytes:
    """Return the bytes of an object, with its checksum; equal objects have equal bytes."""
    data = _encode({**content, CHECKSUM_NAME: _checksum(content)})
    assert len(data) <= SIZE_BYTES_MAX
    return data


def has_checksum(content: bytes) -> bool:
    """Return whether bytes are an object with a checksum that matches."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    written = found.pop(CHECKSUM_NAME, None)
    return bool(written == _checksum(found))


def _encode(content: dict[str, object]) -> bytes:
    return json.dumps(content, indent=2).encode("ascii") + b"\n"


def _checksum(content: dict[str, object]) -> str:
    return f"{crc32c(_encode(content)):08x}"


def utc_text(unix_us: int) -> str:
    """Return a time in seconds, in UTC: 2026-01-31T12:00:00+00:00."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_us)
    return moment.isoformat(timespec="seconds")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
