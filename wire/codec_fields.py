"""The fields that a fast codec supports: each generates the source that packs and unpacks it.

Fields of fixed size (numbers, fixed bytes, constants) are a format of `struct`. The others begin with a size or a
count, which is such a format too, so that it is packed together with the fixed fields before it.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import starmap
from typing import Any, Final, Protocol, TypeGuard

import construct as c

from .errors import CodecError

_NUMBERS: Final = frozenset("BHLQbhlq")
_PREFIXES: Final = frozenset("BHLQ")
"""Formats of a size or a count. A negative one would lead backwards, past bytes that were read already."""

Scope = dict[str, Any]
"""The values of the names in generated source."""


class ItemCodec(Protocol):
    """Packs and unpacks an item of a list."""

    size_min: int
    only_struct: struct.Struct | None

    @cached_property
    def pack(self) -> Callable[..., bytes]:
        """Returns the bytes of an item, given its values."""
        ...

    @cached_property
    def unpack_from(self) -> Callable[..., tuple[tuple[Any, ...], int]]:
        """Returns the values of the item at an offset, and the offset after it."""
        ...


class Field:
    """One field, as the source that packs and unpacks it.

    Attributes:
        value: the variable with its value.
        code: the struct format of its fixed part: all of it, or the size or the count before the rest; or empty.
        fixed: the variable into which this is unpacked.
    """

    code = ""

    def __init__(self, at: int, name: str) -> None:
        self.at = at
        self.name = name
        self.value = self.fixed = f"v{at}"

    @property
    def size_min(self) -> int:
        """The fewest bytes of it."""
        return struct.calcsize("<" + self.code)

    def problem(self, value: Any) -> str:
        """Return why a value does not fit, for people; empty if Python's own message is best."""
        return ""

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """Return lines to come before, the expression to pack as `code`, and the expression that follows, if any.

        Args:
            names_items: whether to name an invalid item of a list, rather than to pack fast.
        """
        return [], self.value, ""

    def unpacking(self, scope: Scope) -> list[str]:
        """Return lines that turn `fixed`, and the bytes at `offset`, into the value."""
        return []


class Number(Field):
    """A fixed number."""

    def __init__(self, at: int, name: str, code: str) -> None:
        super().__init__(at, name)
        self.code = code

    def problem(self, value: Any) -> str:
        """As of any field."""
        low, high = _bounds(self.code)
        return f"is a whole number from {low} to {high}, not {value!r:.100}"


class FixedBytes(Number):
    """So many bytes."""

    def __init__(self, at: int, name: str, size: int) -> None:
        super().__init__(at, name, f"{size}s")
        self._size = size

    def problem(self, value: Any) -> str:
        """As of any field."""
        found = len(value) if isinstance(value, bytes | bytearray) else type(value).__name__
        return f"is {self._size} bytes, not {found}"

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        # `struct` pads and cuts silently; a declaration of n bytes means n bytes.
        scope["StructError"] = struct.error
        value = self.value
        return [f"if len({value}) != {self._size}:", "    raise StructError"], value, ""


class Constant(Number):
    """A constant of the structure: not a field of the caller."""

    def __init__(self, at: int, name: str, code: str, constant: Any, *, structure: str) -> None:
        super().__init__(at, name, code)
        self._constant = constant
        self._structure = structure

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        return [], repr(self._constant), ""

    def unpacking(self, scope: Scope) -> list[str]:
        """As of any field."""
        scope[f"other{self.at}"] = partial(_other, self._structure, self.name, self._constant)
        return [f"if {self.value} != {self._constant!r}:", f"    raise other{self.at}({self.value})"]


class Counted(Field):
    """Bytes after their size; the base of other fields with a size or a count before them."""

    def __init__(self, at: int, name: str, prefix: c.Construct, *, structure: str, item_size_min: int = 1) -> None:
        super().__init__(at, name)
        code = format_of(prefix)
        if not isinstance(prefix, c.FormatField) or code not in _PREFIXES:
            raise TypeError(f"{structure}.{name}: its prefix is not an unsigned number")
        if item_size_min == 0:
            raise TypeError("an array of structures that may be empty has no bound")
        self.code = str(code)
        self.fixed = f"n{at}"
        self._structure = structure
        self._item_size_min = item_size_min
        # Reads an item or all of them, if no built-in can.
        self._reader = f"r{at}"
        self._empty = 'b""'

    def problem(self, value: Any) -> str:
        """As of any field."""
        if not isinstance(value, bytes | bytearray | memoryview):
            return f"is bytes, not {type(value).__name__}"
        return self._too_many(len(value), "bytes")

    def _too_many(self, count: int, what: str) -> str:
        count_max = _bounds(self.code)[1]
        return f"has {count} {what}; at most {count_max} fit" if count > count_max else ""

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        return [], f"len({self.value})", self.value

    def unpacking(self, scope: Scope) -> list[str]:
        """As of any field."""
        size = self.fixed if self._item_size_min == 1 else f"{self.fixed} * {self._item_size_min}"
        return [
            f"if {self.fixed}:",
            # The count is a peer's claim: it is trusted only as far as bytes have arrived.
            f"    at = offset + {size}",
            "    if at > end:",
            "        raise short(end - offset, at - offset)",
            *[f"    {line}" for line in self._reading(scope)],
            "else:",  # most lists of most messages
            f"    {self.value} = {self._empty}",
        ]

    def _reading(self, scope: Scope) -> list[str]:
        """Return lines that read a non-empty value from `offset` to `at`."""
        return [f"{self.value} = bytes(data[offset:at])", "offset = at"]


class Text(Counted):
    """Text after the size of its bytes."""

    def __init__(self, at: int, name: str, prefix: c.Construct, *, structure: str) -> None:
        super().__init__(at, name, prefix, structure=structure)
        self._empty = '""'

    def problem(self, value: Any) -> str:
        """As of any field."""
        if not isinstance(value, str):
            return f"is text, not {type(value).__name__}"
        try:
            return self._too_many(len(value.encode()), "bytes")
        except UnicodeEncodeError:
            return f"{value[:40]!a} cannot be written in UTF-8"

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        content = f"c{self.at}"
        return [f'{content} = {self.value}.encode("utf-8")'], f"len({content})", content

    def _reading(self, scope: Scope) -> list[str]:
        scope[f"undecoded{self.at}"] = partial(CodecError, self._structure, self.name)
        return [
            "try:",
            f'    {self.value} = str(data[offset:at], "utf-8")',
            "except UnicodeDecodeError as error:",
            f"    raise undecoded{self.at}(str(error)) from None",
            "offset = at",
        ]


class Numbers(Counted):
    """Numbers after their count."""

    def __init__(self, at: int, name: str, prefix: c.Construct, number: c.FormatField, *, structure: str) -> None:
        self._item = str(format_of(number))
        item_size = struct.calcsize(f"<{self._item}")
        super().__init__(at, name, prefix, structure=structure, item_size_min=item_size)
        self._empty = "[]"

    def problem(self, value: Any) -> str:
        """As of any field."""
        low, high = _bounds(self._item)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return f"is a list of numbers, not {type(value).__name__}"
        for each in value:
            if not hasattr(each, "__index__") or not low <= each <= high:
                return f"has whole numbers from {low} to {high}, not {each!r:.100}"
        return self._too_many(len(value), "numbers")

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        scope["pack_numbers"] = struct.pack
        count = f"len({self.value})"
        return [], count, f'pack_numbers(f"<{{{count}}}{self._item}", *{self.value})'

    def _reading(self, scope: Scope) -> list[str]:
        scope["unpack_numbers"] = struct.unpack_from
        return [
            f'{self.value} = list(unpack_numbers(f"<{{{self.fixed}}}{self._item}", data, offset))',
            "offset = at",
        ]


class Structures(Counted):
    """Structures after their count."""

    def __init__(
        self,
        at: int,
        name: str,
        prefix: c.Construct,
        codec: ItemCodec,
        *,
        structure: str,
        item_class: type[Any] | None,
    ) -> None:
        self._codec = codec
        # Makes an item of its values without Python code.
        self._make = partial(tuple.__new__, item_class) if item_class else None
        super().__init__(at, name, prefix, structure=structure, item_size_min=self._codec.size_min)
        self._empty = "[]"

    def problem(self, value: Any) -> str:
        """Return the problem of a value; an item describes its own."""
        return self._too_many(len(value), "items") if isinstance(value, Sequence) else ""

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        only_struct = self._codec.only_struct
        packer = f"p{self.at}"
        scope[packer] = self._codec.pack if names_items or only_struct is None else only_struct.pack
        scope["join"], scope["starmap"] = b"".join, starmap
        # An item that is not a sequence, or has another length, is a TypeError.
        content = f"join(starmap({packer}, {self.value})) if {self.value} else b''"
        return [], f"len({self.value})", content

    def _reading(self, scope: Scope) -> list[str]:
        maker = f"m{self.at}"
        scope[maker] = self._make
        only_struct = self._codec.only_struct
        if only_struct is not None:
            scope[self._reader] = only_struct.iter_unpack
            items = f"{self._reader}(memoryview(data)[offset:at])"
            made = items if self._make is None else f"map({maker}, {items})"
            return [f"{self.value} = list({made})", "offset = at"]
        scope[self._reader] = self._codec.unpack_from
        return [
            f"{self.value} = []",
            f"for _ in range({self.fixed}):",
            f"    item, offset = {self._reader}(data, offset, end)",
            f"    {self.value}.append({'item' if self._make is None else f'{maker}(item)'})",
        ]


class Rest(Field):
    """All bytes that follow."""

    def packing(self, scope: Scope, *, names_items: bool) -> tuple[list[str], str, str]:
        """As of any field."""
        return [], "", f"memoryview({self.value})"

    def unpacking(self, scope: Scope) -> list[str]:
        """As of any field."""
        return [f"{self.value} = memoryview(data)[offset:end]", "offset = end"]


def field_of(
    at: int,
    name: str,
    subcon: c.Construct,
    *,
    structure: str,
    item_class: type[Any] | None,
    codec_of: Callable[..., ItemCodec],
) -> Field:
    """Return one field, the one at that place of its structure.

    Args:
        item_class: the named tuple of the items of a list, if it has one.
        codec_of: makes the codec of the items of a list.

    Raises:
        TypeError: it is declared by an unsupported construct.
    """
    code = format_of(subcon)
    if code is not None:
        if isinstance(subcon, c.Const):
            return Constant(at, name, code, subcon.value, structure=structure)
        return FixedBytes(at, name, subcon.length) if isinstance(subcon, c.Bytes) else Number(at, name, code)
    if isinstance(subcon, type(c.GreedyBytes)):
        return Rest(at, name)
    if isinstance(subcon, c.StringEncoded) and subcon.encoding in {"utf8", "utf-8"} and _is_bytes(subcon.subcon):
        return Text(at, name, subcon.subcon.lengthfield, structure=structure)
    if _is_bytes(subcon):
        return Counted(at, name, subcon.lengthfield, structure=structure)
    if isinstance(subcon, c.FocusedSeq):
        count, items = (unrenamed(part) for part in subcon.subcons)
        if isinstance(count, c.Rebuild) and isinstance(items, c.Array):
            item = unrenamed(items.subcon)
            if isinstance(item, c.FormatField):
                return Numbers(at, name, count.subcon, item, structure=structure)
            if isinstance(item, c.Struct):
                codec = codec_of(item, name=f"{structure}.{name}", cls=item_class)
                return Structures(at, name, count.subcon, codec, structure=structure, item_class=item_class)
    raise TypeError(f"{structure}.{name}: no derivation for {subcon!r}")


def _is_bytes(subcon: c.Construct) -> TypeGuard[c.Prefixed]:
    return (
        isinstance(subcon, c.Prefixed)
        and isinstance(unrenamed(subcon.subcon), type(c.GreedyBytes))
        and not subcon.includelength
    )


def unrenamed(subcon: c.Construct) -> c.Construct:
    """Return a construct without the names that were given to it."""
    while isinstance(subcon, c.Renamed):
        subcon = subcon.subcon
    return subcon


def format_of(subcon: c.Construct) -> str | None:
    """Return the struct format of a fixed field without its byte order, or None if it is not fixed."""
    if isinstance(subcon, c.FormatField):
        order, code = subcon.fmtstr[0], subcon.fmtstr[1:]
        if code not in _NUMBERS or (order != "<" and code not in {"B", "b"}):
            raise TypeError(f"{subcon!r} is not a little-endian integer")
        return str(code)
    if isinstance(subcon, c.Bytes) and isinstance(subcon.length, int):
        return f"{subcon.length}s"
    if isinstance(subcon, c.Const):
        return format_of(unrenamed(subcon.subcon))
    return None


def _bounds(code: str) -> tuple[int, int]:
    """Return the least and the greatest number of a format."""
    bit_count = 8 * struct.calcsize(f"<{code}")
    return (0, (1 << bit_count) - 1) if code.isupper() else (-(1 << bit_count - 1), (1 << bit_count - 1) - 1)


def _other(name: str, field: str, constant: Any, value: Any) -> CodecError:
    return CodecError(name, field, f"is {value!r}, not {constant!r}")
