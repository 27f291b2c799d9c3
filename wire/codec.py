"""Fast codecs, derived mechanically from the construct declarations.

A construct declaration is the specification; running it costs 10 to 16 us a structure. `Codec` walks its subcons once
and compiles a function for each direction, as `dataclasses` does: consecutive fixed fields, and the size or the count
that follows them, are one call of a `struct.Struct`; prefixed bytes and text are slices, constants are checks, and the
items of a list are packed and unpacked without Python code for each, if they are numbers or all of fixed size. Such a
codec costs 0.3 to 2 us. Property tests prove that both accept, reject and produce the same.

Supported declarations (all others are rejected):

    Int8ul ... Int64ul, Int8sl ... Int64sl              fixed numbers, little-endian
    Bytes(n)                                            fixed bytes
    Const(value, number) / Const(b"...")                checked when read, written automatically
    Prefixed(unsigned number, GreedyBytes)              bytes after their size
    PascalString(unsigned number, "utf8")               text after its size
    PrefixedArray(unsigned number, number or Struct)    a list after its count
    GreedyBytes                                         the rest; last field only
    Terminated                                          nothing may follow; last

The codec checks everything that construct checks, and no more. The caller checks whether a value is meaningful (a count
of at least one, a known flag).

For `Struct("kind" / Int8ul, "name" / PascalString(Int16ul, "utf8"))` the function that packs is

    def pack(v0, v1):
        try:
            c1 = v1.encode("utf-8")
            return join((s0(v0, len(c1)), c1))
        except MISFITS:
            raise misfit(v0, v1) from None

and only then is the invalid field searched: field by field, by functions generated in the same way.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final

import construct as c

from millrace.model.checksum import Buffer

from .codec_fields import Constant, Field, Number, Rest, Scope, field_of, format_of, unrenamed
from .errors import CodecError
from .messages.declaration import item_classes

Values = tuple[Any, ...]

_MISFITS: Final = (struct.error, TypeError, AttributeError, UnicodeEncodeError)
"""Raised if a value does not fit its field."""


class Codec:
    """The codec of one declaration.

    Args:
        name: the name used in errors.
        cls: the class that was declared by its annotations: `pack_object` takes and `unpack_object` creates its
            objects. Items of its lists have the classes named there.

    Attributes:
        names: the fields that a caller passes and receives, in order; constants are left out.
        size_min: the fewest bytes of the structure.
        only_struct: the struct of all fields, if they are only numbers; else None.

    Raises:
        TypeError: the declaration uses a construct without a derivation (see the module docstring).
    """

    def __init__(self, declaration: c.Struct, *, name: str, cls: type[Any] | None = None) -> None:
        self._name = name
        self._cls = cls
        subcons = [(str(subcon.name or ""), unrenamed(subcon)) for subcon in declaration.subcons]
        self._is_terminated = bool(subcons) and isinstance(subcons[-1][1], type(c.Terminated))
        if self._is_terminated:
            subcons.pop()
        classes = item_classes(cls) if cls else {}
        self._fields = [
            field_of(at, field, subcon, structure=name, item_class=classes.get(field), codec_of=Codec)
            for at, (field, subcon) in enumerate(subcons)
        ]
        if any(isinstance(field, Rest) for field in self._fields[:-1]):
            raise TypeError(f"{name}: nothing may follow a greedy field")
        self._valued = [field for field in self._fields if not isinstance(field, Constant)]
        self.names = tuple(field.name for field in self._valued)
        if not all(self.names):
            raise TypeError(f"{name}: a field has no name")
        self.size_min = sum(field.size_min for field in self._fields)
        self.only_struct: struct.Struct | None = None
        if self._fields and not self._is_terminated and all(type(field) is Number for field in self._fields):
            self.only_struct = struct.Struct("<" + "".join(field.code for field in self._fields))

    # Each function is compiled on first use: most programs need only some.

    @cached_property
    def pack(self) -> Callable[..., bytes]:
        """Returns the bytes of the structure, given its values in the order of `names`.

        It raises CodecError if a value does not fit its field, and TypeError if there are more or fewer values.
        """
        return self._packer(", ".join(field.value for field in self._valued), [])

    @cached_property
    def pack_object(self) -> Callable[[Any], bytes]:
        """Returns the bytes of the structure, given an object of `cls`. Raises like `pack`."""
        return self._packer("o", [f"    {field.value} = o.{field.name}" for field in self._valued])

    @cached_property
    def unpack_from(self) -> Callable[..., tuple[Values, int]]:
        """Like `unpack`, but also returns the offset after the structure."""
        return self._unpacker(f"({''.join(f'{field.value}, ' for field in self._valued)})")

    @cached_property
    def unpack_object(self) -> Callable[..., tuple[Any, int]]:
        """Like `unpack_from`, but returns an object of `cls`."""
        return self._unpacker(f"cls({', '.join(f'{field.name}={field.value}' for field in self._valued)})")

    def unpack(self, data: Buffer, offset: int = 0, end: int | None = None) -> Values:
        """Return the values of the structure that starts at `offset`; no byte from `end` on is read.

        `end` defaults to the end of `data`, and must not be above it. Bytes after the structure are ignored unless it
        is declared `Terminated`. Byte fields are returned as `bytes` (copied), the greedy rest as a `memoryview` into
        `data`.

        Raises:
            CodecError: the bytes do not fit the declaration.
        """
        return self.unpack_from(data, offset, end)[0]

    def _packer(self, given: str, before: list[str]) -> Callable[..., bytes]:
        scope: Scope = {"MISFITS": _MISFITS, "misfit": self._misfit}
        lines = [
            f"def pack({given}):",
            *before,
            "    try:",
            *[f"    {line}" for line in _packing(self._fields, scope)],
            "    except MISFITS:",
            f"        raise misfit({', '.join(field.value for field in self._valued)}) from None",
        ]
        return _compiled(lines, scope, name=self._name)

    def _unpacker(self, made: str) -> Callable[..., tuple[Any, int]]:
        scope: Scope = {"cls": self._cls}
        lines = [
            "def unpack(data, offset=0, end=None):",
            "    if end is None:",
            "        end = len(data)",
            *_unpacking(self._name, self._fields, scope),
        ]
        if self._is_terminated:
            scope["trailing"] = partial(_trailing, self._name)
            lines += ["    if offset != end:", "        raise trailing(end - offset)"]
        return _compiled([*lines, f"    return {made}, offset"], scope, name=self._name)

    def _misfit(self, *values: Any) -> CodecError:
        """Find the field whose value could not be packed; only called after that failure."""
        for field, value in zip(self._valued, values, strict=True):
            scope: Scope = {}
            lines = [f"def pack({field.value}):", *_packing([field], scope, names_items=True)]
            try:
                _compiled(lines, scope, name=self._name)(value)
            except _MISFITS as error:
                return CodecError(self._name, field.name, field.problem(value) or str(error))
        raise AssertionError(f"{self._name}: every field of {values!r} fits")


def fixed_struct(declaration: c.Struct, *, name: str, names: str = "") -> struct.Struct:
    """Return the struct of a declaration whose every field is fixed, for hot paths.

    It includes constants, but checks neither them nor the end.

    Args:
        names: all fields in order, if the caller packs them by position.

    Raises:
        TypeError: a field is variable, or the fields differ.
    """
    fields = [(str(subcon.name), format_of(unrenamed(subcon))) for subcon in declaration.subcons]
    formats = [code for _, code in fields if code is not None]
    if len(formats) < len(fields) or (names and [field for field, _ in fields] != names.split()):
        raise TypeError(f"{name} is not a fixed structure of {names or fields}")
    return struct.Struct("<" + "".join(formats))


def _packing(fields: Sequence[Field], scope: Scope, *, names_items: bool = False) -> list[str]:
    """Return lines that return the bytes of some fields, whose values are in their variables."""
    lines: list[str] = []
    pieces: list[str] = []
    code, given = "", []
    for at, field in enumerate(fields):
        before, fixed, content = field.packing(scope, names_items=names_items)
        lines += [f"    {line}" for line in before]
        code += field.code
        given += [fixed] if fixed else []
        if code and (content or at == len(fields) - 1):
            packer = f"s{len(pieces)}"
            scope[packer] = struct.Struct("<" + code).pack
            pieces.append(f"{packer}({', '.join(given)})")
            code, given = "", []
        if content:
            pieces.append(content)
    scope["join"] = b"".join
    is_one = len(pieces) == 1 and bool(fields) and not isinstance(fields[-1], Rest)
    joined = f"join(({', '.join(pieces)},))" if pieces else "b''"
    return [*lines, f"    return {pieces[0] if is_one else joined}"]


def _unpacking(name: str, fields: Sequence[Field], scope: Scope) -> list[str]:
    """Return lines that unpack some fields from `offset` on into their variables, and advance it to their end."""
    scope["short"] = partial(_short, name)
    lines: list[str] = []
    group: list[Field] = []
    for at, field in enumerate(fields):
        group += [field] if field.code else []
        if not isinstance(field, Number) or at == len(fields) - 1:
            if group:
                layout = struct.Struct("<" + "".join(each.code for each in group))
                unpacker = f"u{at}"
                scope[unpacker] = layout.unpack_from
                lines += [
                    f"at = offset + {layout.size}",
                    "if at > end:",
                    f"    raise short(end - offset, {layout.size})",
                    f"{', '.join(each.fixed for each in group)}, = {unpacker}(data, offset)",
                    "offset = at",
                ]
            for each in group:
                lines += each.unpacking(scope)
            if not field.code:
                lines += field.unpacking(scope)
            group = []
    return [f"    {line}" for line in lines]


def _compiled(lines: Sequence[str], scope: Scope, *, name: str) -> Callable[..., Any]:
    """Compile a function from this source: it is made of declarations only, without outside input."""
    made: Scope = {}
    exec(compile("\n".join(lines), f"<codec of {name}>", "exec"), scope, made)  # noqa: S102  # as `dataclasses` does
    (function,) = made.values()
    return function  # type: ignore[no-any-return]


def _short(name: str, left: int, size: int) -> CodecError:
    return CodecError(name, "", f"{left} bytes left, {size} needed")


def _trailing(name: str, count: int) -> CodecError:
    return CodecError(name, "", f"{count} bytes too many")
