"""Fast codecs, derived mechanically from the construct declarations.

A construct declaration is the specification; running it costs 10 to 16 us a structure. `derive` walks its
subcons once and generates a pair of plain functions: every run of
fixed fields becomes one `struct.Struct`, prefixed bytes and text become slices, constants become checks. The
generated pair costs 0.3 to 0.6 us. Property tests prove that both accept, refuse and produce the same.

What may be declared (anything else is refused by `derive`):

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

import keyword
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import construct as c

from millrace.model.checksum import Buffer

from .errors import CodecError

Values = tuple[Any, ...]

_NUMBERS: Final = frozenset("BHLQbhlq")
_PREFIXES: Final = frozenset("BHLQ")
"""Formats of a size or a count. A negative one would lead backwards, past bytes that were read already."""


class Codec:
    """The pair of functions derived from one declaration.

    Attributes:
        name: the name used in errors.
        names: the fields a caller gives and gets, in order; constants are left out.
        size: bytes of the structure, or None where it varies.
        fixed: the `struct.Struct` of a structure whose every field is fixed, else None; see `fixed_struct`.
        fixed_names: all fields of `fixed`, constants included, in order.
        source: the generated functions, for people.
    """

    __slots__ = ("_pack", "_unpack", "fixed", "fixed_names", "name", "names", "size", "source")

    def __init__(self, declaration: c.Struct, *, name: str) -> None:
        self.name = name
        generator = _Generator(declaration, name)
        self.names: tuple[str, ...] = tuple(generator.names)
        self.fixed_names: tuple[str, ...] = tuple(generator.fixed_names)
        self.fixed: struct.Struct | None = generator.whole_struct()
        self.size: int | None = self.fixed.size if self.fixed else None
        self.source = generator.source()
        self._pack, self._unpack = generator.functions(self.source)

    def pack(self, *values: Any) -> bytes:
        """Return the bytes of the structure; `values` in the order of `names`.

        Raises:
            CodecError: a value does not fit its field.
        """
        return self._pack(*values)

    def unpack(self, data: Buffer, offset: int = 0, end: int | None = None) -> Values:
        """Return the values of the structure that starts at `offset`; nothing from `end` on is read.

        `end` is the end of `data` unless given, and at most that. Bytes after the structure are ignored unless it is
        declared `Terminated`. Byte fields come back as `bytes` (copied), the greedy rest as a `memoryview` into
        `data`.

        Raises:
            CodecError: the bytes do not fit the declaration.
        """
        return self._unpack(data, offset, len(data) if end is None else end)[0]

    def unpack_from(self, data: Buffer, offset: int = 0, end: int | None = None) -> tuple[Values, int]:
        """Like `unpack`, and return also the offset after the structure."""
        return self._unpack(data, offset, len(data) if end is None else end)


def derive(declaration: c.Struct, *, name: str) -> Codec:
    """Derive the fast codec of a construct `Struct`.

    Raises:
        TypeError: the declaration uses a construct that has no derivation (see the module docstring).
    """
    return Codec(declaration, name=name)


def fixed_struct(declaration: c.Struct, *, name: str, names: str = "") -> struct.Struct:
    """Return the struct of a declaration whose every field is fixed, for hot paths.

    It holds constants too, and checks neither them nor the end.

    Args:
        names: all fields in order, where the caller packs them by place.

    Raises:
        TypeError: a field varies, or the fields are others.
    """
    codec = Codec(declaration, name=name)
    if codec.fixed is None or (names and codec.fixed_names != tuple(names.split())):
        raise TypeError(f"{name} is not a fixed structure of {names or codec.names}")
    return codec.fixed


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


class _Generator:
    """Turns one declaration into the source of its two functions."""

    def __init__(self, declaration: c.Struct, name: str) -> None:
        self._name = name
        # Every name of the generated code but the fields starts with an underscore, and no field does.
        self._environment: dict[str, Any] = {
            "_CodecError": CodecError,
            "_struct_error": struct.error,
            "_misfit": _misfit,
            "_bytes": bytes,
            "_len": len,
            "_memoryview": memoryview,
            "_str": str,
        }
        self._pack: list[str] = []
        self._unpack: list[str] = []
        self._parts: list[str] = []
        self._run: list[tuple[str, str, Any]] = []  # (field, format, constant or None) of the open fixed run
        self._all_fixed: list[str] | None = []
        self.names: list[str] = []
        self.fixed_names: list[str] = []
        ended = False
        for subcon in declaration.subcons:
            if ended and not isinstance(_unrenamed(subcon), type(c.Terminated)):
                raise TypeError(f"{name}: nothing may follow a greedy field or Terminated")
            ended = self._field(str(subcon.name or ""), _unrenamed(subcon)) or ended
        self._flush()
        fields = [*self.names, *(field for field in self.fixed_names if field not in self.names)]
        if len(fields) != len({*self.names, *self.fixed_names}) or not all(map(_is_field_name, fields)):
            raise TypeError(f"{name}: the names of its fields {fields} are not distinct names of variables")

    def whole_struct(self) -> struct.Struct | None:
        return struct.Struct("<" + "".join(self._all_fixed)) if self._all_fixed else None

    def source(self) -> str:
        values = "".join(f"{field}, " for field in self.names)
        lines = [f"def pack({values}):", *self._pack]
        if self._all_fixed:
            lines += [f"    return {self._parts[0]}"]
        else:
            lines += [
                f"    try: return b''.join(({''.join(f'{part}, ' for part in self._parts)}))",
                f"    except TypeError as _error: raise _CodecError({self._name!r}, '', _str(_error)) from None",
            ]
        lines += ["def unpack(_data, _offset, _end):", *self._unpack, f"    return ({values}), _offset"]
        return "\n".join(lines) + "\n"

    def functions(self, source: str) -> tuple[Callable[..., bytes], Callable[[Buffer, int, int], tuple[Values, int]]]:
        # The source is made from our own declarations; no input reaches it.
        exec(compile(source, f"<codec of {self._name}>", "exec"), self._environment)  # noqa: S102
        return self._environment["pack"], self._environment["unpack"]

    def _bind(self, value: Any) -> str:
        key = f"_{len(self._environment)}"
        self._environment[key] = value
        return key

    def _field(self, field: str, subcon: c.Construct) -> bool:
        """Generate one field; return whether nothing may follow it."""
        fixed = _format_of(subcon)
        if fixed is not None:
            constant = subcon.value if isinstance(subcon, c.Const) else None
            self._run.append((field, fixed, constant))
            self.fixed_names.append(field)
            if self._all_fixed is not None:
                self._all_fixed.append(fixed)
            if constant is None:
                self.names.append(field)
            return False
        self._flush()
        if isinstance(subcon, type(c.Terminated)):
            self._unpack += [
                "    if _offset != _end:",
                f"        raise _CodecError({self._name!r}, '', f'{{_end - _offset}} bytes too many')",
            ]
            return True
        self._all_fixed = None
        self.names.append(field)
        if isinstance(subcon, type(c.GreedyBytes)):
            self._parts.append(field)
            self._unpack += [f"    {field} = _memoryview(_data)[_offset:_end]", "    _offset = _end"]
            return True
        if isinstance(subcon, c.StringEncoded) and isinstance(subcon.subcon, c.Prefixed):
            if subcon.encoding not in {"utf8", "utf-8"}:
                raise TypeError(f"{self._name}.{field}: text is UTF-8, not {subcon.encoding}")
            self._prefixed(field, subcon.subcon, text=True)
        elif isinstance(subcon, c.Prefixed):
            self._prefixed(field, subcon, text=False)
        elif isinstance(subcon, c.FocusedSeq):
            self._array(field, subcon)
        else:
            raise TypeError(f"{self._name}.{field}: no derivation for {type(subcon).__name__}")
        return False

    def _flush(self) -> None:
        """Close the open run of fixed fields with one `struct` call in each direction."""
        if not self._run:
            return
        run, self._run = self._run, []
        fields = [field for field, _, _ in run]
        codes = [code for _, code, _ in run]
        packed = struct.Struct("<" + "".join(codes))
        pack, unpack, size = self._bind(packed.pack), self._bind(packed.unpack_from), packed.size
        arguments = ", ".join(field if constant is None else self._bind(constant) for field, _, constant in run)
        part = f"_part{len(self._parts)}"
        self._pack += [
            f"    try: {part} = {pack}({arguments})",
            f"    except _struct_error: raise _misfit({self._name!r}, {fields}, {codes}, ({arguments},)) from None",
        ]
        for field, code, constant in run:
            if code.endswith("s") and constant is None:
                # struct pads and cuts silently; a declaration of n bytes means n bytes.
                reason = f"f'is {{_len({field})}} bytes, not {code[:-1]}'"
                self._pack += [
                    f"    if _len({field}) != {code[:-1]}:",
                    f"        raise _CodecError({self._name!r}, {field!r}, {reason})",
                ]
        self._parts.append(part)
        self._need(str(size))
        self._unpack += [f"    ({', '.join(fields)},) = {unpack}(_data, _offset)", f"    _offset += {size}"]
        for field, _, constant in run:
            if constant is not None:
                reason = f"f'is {{{field}!r}}, not ' + {repr(constant)!r}"
                self._unpack += [
                    f"    if {field} != {self._bind(constant)}:",
                    f"        raise _CodecError({self._name!r}, {field!r}, {reason})",
                ]

    def _need(self, size: str, field: str = "") -> None:
        reason = f"f'{{_end - _offset}} bytes left, {{{size}}} needed'"
        self._unpack += [
            f"    if _end - _offset < {size}:",
            f"        raise _CodecError({self._name!r}, {field!r}, {reason})",
        ]

    def _prefix(self, field: str, subcon: c.Construct, *, counted: str) -> None:
        """Generate the number before a variable field: the length of the variable `counted`."""
        code = _format_of(subcon)
        if not isinstance(subcon, c.FormatField) or code not in _PREFIXES:
            raise TypeError(f"{self._name}.{field}: its prefix is not an unsigned number")
        packed = struct.Struct("<" + code)
        pack, unpack = self._bind(packed.pack), self._bind(packed.unpack_from)
        part = f"_part{len(self._parts)}"
        self._pack += [
            f"    try: {part} = {pack}(_len({counted}))",
            "    except (_struct_error, TypeError) as _error:",
            f"        raise _CodecError({self._name!r}, {field!r}, _str(_error)) from None",
        ]
        self._parts.append(part)
        self._need(str(packed.size), field)
        self._unpack += [f"    (_count,) = {unpack}(_data, _offset)", f"    _offset += {packed.size}"]

    def _prefixed(self, field: str, subcon: c.Prefixed, *, text: bool) -> None:
        if not isinstance(_unrenamed(subcon.subcon), type(c.GreedyBytes)) or subcon.includelength:
            raise TypeError(f"{self._name}.{field}: only Prefixed(number, GreedyBytes) has a derivation")
        written = f"_text{len(self._parts)}" if text else field
        if text:
            self._pack += [
                f"    try: {written} = {field}.encode('utf-8')",
                "    except (AttributeError, UnicodeEncodeError) as _error:",
                f"        raise _CodecError({self._name!r}, {field!r}, _str(_error)) from None",
            ]
        self._prefix(field, _unrenamed(subcon.lengthfield), counted=written)
        self._parts.append(written)
        self._need("_count", field)
        if text:
            self._unpack += [
                f"    try: {field} = _str(_data[_offset:_offset + _count], 'utf-8')",
                "    except UnicodeDecodeError as _error:",
                f"        raise _CodecError({self._name!r}, {field!r}, _str(_error)) from None",
            ]
        else:
            self._unpack += [f"    {field} = _bytes(_data[_offset:_offset + _count])"]
        self._unpack += ["    _offset += _count"]

    def _array(self, field: str, subcon: c.FocusedSeq) -> None:
        count, items = (_unrenamed(part) for part in subcon.subcons)
        if not isinstance(count, c.Rebuild) or not isinstance(items, c.Array):
            raise TypeError(f"{self._name}.{field}: only PrefixedArray has a derivation")
        item = _unrenamed(items.subcon)
        self._prefix(field, _unrenamed(count.subcon), counted=field)
        if isinstance(item, c.FormatField):
            packed = struct.Struct(f"<{_format_of(item)}")
            pack, decode = _pack_numbers(packed, self._name, field), _unpack_numbers(packed)
            size_min = packed.size
        elif isinstance(item, c.Struct):
            codec = Codec(item, name=f"{self._name}.{field}")
            pack, decode = _pack_structures(codec, self._name, field), _unpack_structures(codec)
            size_min = codec.size or _size_min(item)
        else:
            raise TypeError(f"{self._name}.{field}: no derivation for an array of {type(item).__name__}")
        # The count is what a peer claims: it is believed only as far as bytes have arrived.
        self._need(f"_count * {size_min}", field)
        self._parts.append(f"{self._bind(pack)}({field})")
        self._unpack += [f"    {field}, _offset = {self._bind(decode)}(_data, _offset, _end, _count)"]


def _is_field_name(field: str) -> bool:
    return field.isidentifier() and not keyword.iskeyword(field) and not field.startswith("_")


def _misfit(name: str, fields: Sequence[str], codes: Sequence[str], values: Values) -> CodecError:
    """Find the field because of which `struct` refused to pack; only called once it has."""
    for field, code, value in zip(fields, codes, values, strict=True):
        try:
            struct.pack("<" + code, value)
        except struct.error as error:
            return CodecError(name, field, str(error))
    raise AssertionError(f"{name}: every field of {values!r} fits")


def _size_min(declaration: c.Struct) -> int:
    """Return the fewest bytes a variable structure can have: its fixed fields and its prefixes."""
    total = 0
    for subcon in map(_unrenamed, declaration.subcons):
        code = _format_of(subcon)
        if code is not None:
            total += struct.calcsize("<" + code)
        elif isinstance(subcon, c.StringEncoded):
            total += subcon.subcon.lengthfield.sizeof()  # pyright: ignore[reportAttributeAccessIssue]  # untyped
        elif isinstance(subcon, c.Prefixed):
            total += subcon.lengthfield.sizeof()
        elif isinstance(subcon, c.FocusedSeq):
            total += _unrenamed(subcon.subcons[0]).subcon.sizeof()  # pyright: ignore[reportAttributeAccessIssue]  # as above
    if total == 0:
        raise TypeError("an array of structures that may be empty has no bound")
    return total


def _pack_numbers(packed: struct.Struct, name: str, field: str) -> Callable[[Sequence[Any]], bytes]:
    code = packed.format[1:]

    def pack(values: Sequence[Any]) -> bytes:
        try:
            return struct.pack(f"<{len(values)}{code}", *values)
        except struct.error as error:
            raise CodecError(name, field, str(error)) from None

    return pack


def _unpack_numbers(packed: struct.Struct) -> Callable[[Buffer, int, int, int], tuple[list[Any], int]]:
    code, size = packed.format[1:], packed.size

    def unpack(data: Buffer, offset: int, _end: int, count: int) -> tuple[list[Any], int]:
        return list(struct.unpack_from(f"<{count}{code}", data, offset)), offset + count * size

    return unpack


def _pack_structures(codec: Codec, name: str, field: str) -> Callable[[Iterable[Values]], bytes]:
    def pack(values: Iterable[Values]) -> bytes:
        try:
            return b"".join([codec.pack(*value) for value in values])
        except TypeError as error:  # an item that is no sequence, or one of another length
            raise CodecError(name, field, str(error)) from None

    return pack


def _unpack_structures(codec: Codec) -> Callable[[Buffer, int, int, int], tuple[list[Values], int]]:
    def unpack(data: Buffer, offset: int, end: int, count: int) -> tuple[list[Values], int]:
        values = []
        for _ in range(count):
            value, offset = codec.unpack_from(data, offset, end)
            values.append(value)
        return values, offset

    return unpack
