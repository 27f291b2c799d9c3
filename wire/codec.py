"""Fast codecs, derived mechanically from the construct declarations.

A construct declaration is the specification; running it costs 10 to 16 us a structure. `Codec` walks its subcons once:
consecutive fixed fields become one `struct.Struct`, prefixed bytes and text
become slices, constants become checks. Such a codec costs 1 to 4 us, and what follows one after another in a list less.
Property tests prove that both accept, refuse and produce the same.

What may be declared (anything else is refused):

    Int8ul ... Int64ul, Int8sl ... Int64sl              fixed numbers, little-endian
    Bytes(n)                                            fixed bytes
    Const(value, number) / Const(b"...")                checked when read, written for you
    Prefixed(unsigned number, GreedyBytes)              bytes after their size
    PascalString(unsigned number, "utf8")               text after its size
    PrefixedArray(unsigned number, number or Struct)    a list after its count
    GreedyBytes                                         the rest; last field only
    Terminated                                          nothing may follow; last

What is checked: everything that construct checks, and no more. Whether a value makes sense (a count of at least one, a
known flag) is for the caller to check.
"""

import struct
from abc import ABC, abstractmethod
from itertools import groupby
from typing import Any, Final, TypeGuard

import construct as c

from millrace.model.checksum import Buffer

from .errors import CodecError
from .messages.declaration import item_classes

Values = tuple[Any, ...]

_NUMBERS: Final = frozenset("BHLQbhlq")
_PREFIXES: Final = frozenset("BHLQ")
"""Formats of a size or a count. A negative one would lead backwards, past bytes that were read already."""


class Codec:
    """The codec of one declaration.

    Args:
        name: the name used in errors.
        cls: the class that was declared by its annotations; then items of its lists are of the classes named there.

    Attributes:
        names: the fields a caller gives and gets, in order; constants are left out.
        size_min: the fewest bytes of the structure.
        only_struct: the struct of all fields, if they are only numbers; else None.

    Raises:
        TypeError: the declaration uses a construct that has no derivation (see the module docstring).
    """

    __slots__ = ("_is_terminated", "_name", "_parts", "names", "only_struct", "size_min")

    def __init__(self, declaration: c.Struct, *, name: str, cls: type[Any] | None = None) -> None:
        self._name = name
        self._parts: list[_Part] = []
        fields = [(str(subcon.name or ""), _unrenamed(subcon)) for subcon in declaration.subcons]
        self._is_terminated = bool(fields) and isinstance(fields[-1][1], type(c.Terminated))
        if self._is_terminated:
            fields.pop()
        for is_fixed, group in groupby(fields, key=lambda field: _format_of(field[1]) is not None):
            if is_fixed:
                self._parts.append(_FixedFields(name, list(group)))
            else:
                self._parts += [_variable(name, field, subcon, cls) for field, subcon in group]
        if any(isinstance(part, _Rest) for part in self._parts[:-1]):
            raise TypeError(f"{name}: nothing may follow a greedy field")
        names: list[str] = []
        for part in self._parts:
            part.index = len(names)
            names += part.names
        self.names = tuple(names)
        only = self._parts[0] if len(self._parts) == 1 and not self._is_terminated else None
        self.only_struct = only.struct if isinstance(only, _FixedFields) and only.is_plain else None
        if not all(self.names):
            raise TypeError(f"{name}: a field has no name")
        self.size_min = sum(part.size_min for part in self._parts)

    def pack(self, *values: Any) -> bytes:
        """Return the bytes of the structure; `values` in the order of `names`.

        Raises:
            CodecError: a value does not fit its field.
            TypeError: there are more or fewer values than names.
        """
        if len(values) != len(self.names):
            raise TypeError(f"{self._name} has {len(self.names)} fields, not {len(values)}")
        return b"".join([part.pack(values) for part in self._parts])

    def unpack(self, data: Buffer, offset: int = 0, end: int | None = None) -> Values:
        """Return the values of the structure that starts at `offset`; nothing from `end` on is read.

        `end` is the end of `data` unless given, and at most that. Bytes after the structure are ignored unless it is
        declared `Terminated`. Byte fields come back as `bytes` (copied), the greedy rest as a `memoryview` into
        `data`.

        Raises:
            CodecError: the bytes do not fit the declaration.
        """
        return self.unpack_from(data, offset, end)[0]

    def unpack_from(self, data: Buffer, offset: int = 0, end: int | None = None) -> tuple[Values, int]:
        """Like `unpack`, and return also the offset after the structure."""
        if end is None:
            end = len(data)
        values: list[Any] = []
        for part in self._parts:
            offset = part.unpack(values, data, offset, end)
        if self._is_terminated and offset != end:
            raise CodecError(self._name, "", f"{end - offset} bytes too many")
        return tuple(values), offset


def fixed_struct(declaration: c.Struct, *, name: str, names: str = "") -> struct.Struct:
    """Return the struct of a declaration whose every field is fixed, for hot paths.

    It holds constants too, and checks neither them nor the end.

    Args:
        names: all fields in order, where the caller packs them by place.

    Raises:
        TypeError: a field varies, or the fields are others.
    """
    fields = [(str(subcon.name), _format_of(_unrenamed(subcon))) for subcon in declaration.subcons]
    formats = [code for _, code in fields if code is not None]
    if len(formats) < len(fields) or (names and [field for field, _ in fields] != names.split()):
        raise TypeError(f"{name} is not a fixed structure of {names or fields}")
    return struct.Struct("<" + "".join(formats))


def _unrenamed(subcon: c.Construct) -> c.Construct:
    while isinstance(subcon, c.Renamed):
        subcon = subcon.subcon
    return subcon


def _format_of(subcon: c.Construct) -> str | None:
    """Return the struct format of a fixed field without its byte order, or None if it is not fixed."""
    if isinstance(subcon, c.FormatField):
        order, code = subcon.fmtstr[0], subcon.fmtstr[1:]
        if code not in _NUMBERS or (order != "<" and code not in {"B", "b"}):
            raise TypeError(f"{subcon!r} is not a little-endian integer")
        return str(code)
    if isinstance(subcon, c.Bytes) and isinstance(subcon.length, int):
        return f"{subcon.length}s"
    if isinstance(subcon, c.Const):
        return _format_of(_unrenamed(subcon.subcon))
    return None


class _Part(ABC):
    """Some consecutive fields of a structure.

    Attributes:
        names: of the fields that have values.
        size_min: the fewest bytes of them.
        index: of the first of their values.
    """

    def __init__(self, name: str, names: list[str], *, size_min: int = 0) -> None:
        self._name = name
        self.names = names
        self.size_min = size_min
        self.index = 0

    @abstractmethod
    def pack(self, values: Values) -> Buffer:
        """Return the bytes of the fields."""

    @abstractmethod
    def unpack(self, values: list[Any], data: Buffer, offset: int, end: int) -> int:
        """Append the values of the fields that start at `offset`; return the offset after them."""

    def _need(self, size: int, left: int) -> None:
        if left < size:
            raise CodecError(self._name, "", f"{left} bytes left, {size} needed")


class _FixedFields(_Part):
    """Fixed fields, with one call of `struct` in each direction."""

    def __init__(self, name: str, fields: list[tuple[str, c.Construct]]) -> None:
        self._fields = [(field, str(_format_of(subcon))) for field, subcon in fields]
        self._struct = struct.Struct("<" + "".join(code for _, code in self._fields))
        self._constants = {at: subcon.value for at, (_, subcon) in enumerate(fields) if isinstance(subcon, c.Const)}
        # `struct` pads and cuts silently; a declaration of n bytes means n bytes.
        self._sizes = [(at, subcon.length) for at, (_, subcon) in enumerate(fields) if isinstance(subcon, c.Bytes)]
        names = [field for field, subcon in fields if not isinstance(subcon, c.Const)]
        super().__init__(name, names, size_min=self._struct.size)
        self._count = len(names)

    @property
    def struct(self) -> struct.Struct:
        """What packs all of them."""
        return self._struct

    @property
    def is_plain(self) -> bool:
        """Whether `struct` alone says what fits, and holds no constants."""
        return not self._constants and not self._sizes

    def pack(self, values: Values) -> Buffer:
        values = values[self.index : self.index + self._count]
        if self._constants:
            with_constants = list(values)
            for at, constant in self._constants.items():
                with_constants.insert(at, constant)
            values = tuple(with_constants)
        try:
            packed = self._struct.pack(*values)
        except struct.error:
            raise self._misfit(values) from None
        for at, size in self._sizes:
            if len(values[at]) != size:
                raise CodecError(self._name, self._fields[at][0], f"is {len(values[at])} bytes, not {size}")
        return packed

    def unpack(self, values: list[Any], data: Buffer, offset: int, end: int) -> int:
        self._need(self.size_min, end - offset)
        if not self._constants:
            values += self._struct.unpack_from(data, offset)
            return offset + self.size_min
        for at, value in enumerate(self._struct.unpack_from(data, offset)):
            if at not in self._constants:
                values.append(value)
            elif value != self._constants[at]:
                raise CodecError(self._name, self._fields[at][0], f"is {value!r}, not {self._constants[at]!r}")
        return offset + self.size_min

    def _misfit(self, values: Values) -> CodecError:
        """Find the field because of which `struct` refused to pack; only called once it has."""
        for (field, code), value in zip(self._fields, values, strict=True):
            try:
                struct.pack("<" + code, value)
            except struct.error as error:
                return CodecError(self._name, field, str(error))
        raise AssertionError(f"{self._name}: every field of {values!r} fits")


class _Bytes(_Part):
    """Bytes after their size; what else has its size or its count before it differs in two steps."""

    def __init__(self, name: str, field: str, prefix: c.Construct, *, item_size_min: int = 1) -> None:
        code = _format_of(prefix)
        if not isinstance(prefix, c.FormatField) or code not in _PREFIXES:
            raise TypeError(f"{name}.{field}: its prefix is not an unsigned number")
        if item_size_min == 0:
            raise TypeError("an array of structures that may be empty has no bound")
        self._field = field
        self._prefix = struct.Struct("<" + code)
        self._item_size_min = item_size_min
        super().__init__(name, [field], size_min=self._prefix.size)

    def pack(self, values: Values) -> Buffer:
        try:
            count, content = self._packed(values[self.index])
            return self._prefix.pack(count) + content
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise CodecError(self._name, self._field, str(error)) from None

    def unpack(self, values: list[Any], data: Buffer, offset: int, end: int) -> int:
        start = offset + self.size_min
        if end < start:
            self._need(self.size_min, end - offset)
        (count,) = self._prefix.unpack_from(data, offset)
        # The count is what a peer claims: it is believed only as far as bytes have arrived.
        if count * self._item_size_min > end - start:
            self._need(count * self._item_size_min, end - start)
        value, offset = self._unpacked(data, start, end, count)
        values.append(value)
        return offset

    def _packed(self, value: Any) -> tuple[int, bytes]:
        """Return count and bytes of a value."""
        return len(value), value

    def _unpacked(self, data: Buffer, start: int, end: int, count: int) -> tuple[Any, int]:
        """Return the value that starts there, and the offset after it."""
        return bytes(data[start : start + count]), start + count


class _Text(_Bytes):
    def _packed(self, value: Any) -> tuple[int, bytes]:
        content = value.encode("utf-8")
        return len(content), content

    def _unpacked(self, data: Buffer, start: int, end: int, count: int) -> tuple[Any, int]:
        try:
            return str(data[start : start + count], "utf-8"), start + count
        except UnicodeDecodeError as error:
            raise CodecError(self._name, self._field, str(error)) from None


class _Numbers(_Bytes):
    def __init__(self, name: str, field: str, prefix: c.Construct, number: c.FormatField) -> None:
        self._code = _format_of(number)
        super().__init__(name, field, prefix, item_size_min=struct.calcsize(f"<{self._code}"))

    def _packed(self, value: Any) -> tuple[int, bytes]:
        return len(value), struct.pack(f"<{len(value)}{self._code}", *value)

    def _unpacked(self, data: Buffer, start: int, end: int, count: int) -> tuple[Any, int]:
        return list(struct.unpack_from(f"<{count}{self._code}", data, start)), start + count * self._item_size_min


class _Structures(_Bytes):
    def __init__(self, name: str, field: str, prefix: c.Construct, item: c.Struct, cls: type[Any] | None) -> None:
        item_class = item_classes(cls).get(field) if cls else None
        self._codec = Codec(item, name=f"{name}.{field}", cls=item_class)
        self._make = item_class._make if item_class else tuple
        super().__init__(name, field, prefix, item_size_min=self._codec.size_min)

    def _packed(self, value: Any) -> tuple[int, bytes]:
        count = len(value)
        if not count:  # most lists of most messages
            return 0, b""
        if self._codec.only_struct is not None:
            pack = self._codec.only_struct.pack
            try:
                return count, b"".join([pack(*item) for item in value])
            except struct.error:
                pass  # what does not fit is named below
        # An item that is no sequence, or one of another length, is a TypeError.
        return count, b"".join([self._codec.pack(*item) for item in value])

    def _unpacked(self, data: Buffer, start: int, end: int, count: int) -> tuple[Any, int]:
        if not count:
            return [], start
        only_struct = self._codec.only_struct
        if only_struct is not None:
            end = start + count * only_struct.size
            return [self._make(item) for item in only_struct.iter_unpack(memoryview(data)[start:end])], end
        items = []
        for _ in range(count):
            item, start = self._codec.unpack_from(data, start, end)
            items.append(self._make(item))
        return items, start


class _Rest(_Part):
    """All bytes that follow."""

    def pack(self, values: Values) -> Buffer:
        try:
            return memoryview(values[self.index])
        except TypeError as error:
            raise CodecError(self._name, self.names[0], str(error)) from None

    def unpack(self, values: list[Any], data: Buffer, offset: int, end: int) -> int:
        values.append(memoryview(data)[offset:end])
        return end


def _variable(name: str, field: str, subcon: c.Construct, cls: type[Any] | None) -> _Part:
    """Return what packs one field that is not fixed."""
    if isinstance(subcon, type(c.GreedyBytes)):
        return _Rest(name, [field])
    if isinstance(subcon, c.StringEncoded) and subcon.encoding in {"utf8", "utf-8"} and _is_bytes(subcon.subcon):
        return _Text(name, field, subcon.subcon.lengthfield)
    if _is_bytes(subcon):
        return _Bytes(name, field, subcon.lengthfield)
    if isinstance(subcon, c.FocusedSeq):
        count, items = (_unrenamed(part) for part in subcon.subcons)
        if isinstance(count, c.Rebuild) and isinstance(items, c.Array):
            item = _unrenamed(items.subcon)
            if isinstance(item, c.FormatField):
                return _Numbers(name, field, count.subcon, item)
            if isinstance(item, c.Struct):
                return _Structures(name, field, count.subcon, item, cls)
    raise TypeError(f"{name}.{field}: no derivation for {subcon!r}")


def _is_bytes(subcon: c.Construct) -> TypeGuard[c.Prefixed]:
    return (
        isinstance(subcon, c.Prefixed)
        and isinstance(_unrenamed(subcon.subcon), type(c.GreedyBytes))
        and not subcon.includelength
    )
