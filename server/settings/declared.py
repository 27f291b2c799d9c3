"""The declared settings, derived from the options of the parts.

A field `file_size_bytes` of the options of the part `wal` is the setting `wal.file_size_bytes`, in the environment
MILLRACE_WAL_FILE_SIZE_BYTES. The docstring of the class describes its effect, below `Attributes:`.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from millrace.model.address import Address
from millrace.model.quantities import parse_duration, parse_size
from millrace.server.bounds import is_duration, is_size, option_text
from millrace.server.errors import ConfigurationError
from millrace.server.object_store.url import FORMS, StoreUrl
from millrace.server.options import ServerOptions, parse_listen
from millrace.wire.limits import CONSOLE_PORT, DATA_PORT

PREFIX: Final = "MILLRACE_"
LISTED: Final = "; `millrace settings` lists them"

_NAMES: Final = {"data_folder": "data_dir"}
"""Options whose setting has another name."""
_SIMILAR: Final = 0.8
"""Similarity above which a misspelled name is recognised; 1 is equality."""


class ValueKind(NamedTuple):
    """The kind of values of a setting.

    Attributes:
        read: parses text, and returns other values unchanged; raises ValueError.
        right: the valid values, as a continuation of "it must be".
    """

    read: Callable[[Any], Any]
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDeclaration:
    """A setting.

    Attributes:
        part: name of its part; empty for those of the server as a whole.
        field: its name as a field of the options of its part.
        annotation: its type.
        effect: its description, in a line.
        is_secret: its value must not be shown.
    """

    part: str
    field: str
    annotation: Any
    default: Any
    effect: str
    is_secret: bool

    @property
    def option(self) -> str:
        """Its name in its part."""
        return _NAMES.get(self.field, self.field)

    @property
    def name(self) -> str:
        """`PART.OPTION`, or `OPTION` for those of the server as a whole."""
        return f"{self.part}.{self.option}" if self.part else self.option

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.name.replace(".", "_").upper()

    @property
    def kind(self) -> ValueKind:
        """The kind of its values, by the unit in its name."""
        if self.annotation is not bool and is_size(self.field):
            return ValueKind(_texts(parse_size), "a size, such as 4096, 64KiB, 10MiB or 1.5GiB")
        if self.annotation is not bool and is_duration(self.field):
            return ValueKind(_texts(parse_duration), "a duration, such as 0.5, 15s, 10min, 2h or 7d")
        if get_origin(self.annotation) is Literal:
            return ValueKind(_as_it_is, f"one of {', '.join(get_args(self.annotation))}")
        if self.annotation is Address:
            return ValueKind(_address, "HOST:PORT")
        if self.annotation == Address | None:
            return ValueKind(_address_or_none, "HOST:PORT, or none")
        if self.annotation == StoreUrl | None:
            return ValueKind(_store_or_none, f"{FORMS}, or none")
        if self.annotation == Path | None:
            return ValueKind(_path_or_none, "the path of a file, or none")
        right = {bool: "true or false", int: "a whole number", float: "a number"}
        return ValueKind(_as_it_is, right.get(self.annotation, "a text"))

    def text(self, value: Any) -> str:
        """Return a value as it is written in a file; for a secret only whether it is set."""
        if self.is_secret and value:
            return "(hidden)"
        return "none" if value is None else option_text(self.field, value)


def parts() -> dict[str, type[Any]]:
    """Return the options classes of all parts, by the names of the parts."""
    kinds: dict[str, object] = {item.name: item.default_factory for item in fields(ServerOptions)}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type)}


@cache
def declared() -> dict[str, SettingDeclaration]:
    """Return all settings by their names: those of the server as a whole, then those of each part."""
    settings = [
        *_declared_by(ServerOptions, ""),
        *(s for part, kind in parts().items() for s in _declared_by(kind, part)),
    ]
    return {setting.name: setting for setting in settings}


def _declared_by(kind: type[Any], part: str) -> Iterator[SettingDeclaration]:
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    effects = dict(re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", text, re.MULTILINE))
    for item in fields(kind):
        if item.default is not MISSING:
            yield SettingDeclaration(
                part=part,
                field=item.name,
                annotation=item.type,
                default=item.default,
                effect=" ".join(effects.get(item.name, "").split()).rstrip("."),
                is_secret=not item.repr,
            )


def named_setting(part: str, field: str) -> SettingDeclaration:
    """Return the setting that a field of the options of a part is."""
    option = _NAMES.get(field, field)
    return declared()[f"{part}.{option}" if part else option]


def check_name(name: str) -> None:
    """Raise ConfigurationError unless a setting, or a part, has this name."""
    names = [*declared(), *parts()]
    if name not in names:
        begun = [each for each in names if each.startswith(name)]
        meant = begun if len(begun) == 1 else get_close_matches(name, sorted(names), n=1, cutoff=_SIMILAR)
        raise ConfigurationError(f"{name} is not a setting{_question(meant) or LISTED}")


def similar(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests a similar name, or an empty text."""
    return _question(get_close_matches(name, sorted(names), n=1, cutoff=_SIMILAR))


def _question(meant: Sequence[str]) -> str:
    return f"; did you mean {meant[0]}?" if meant else ""


def _as_it_is(value: Any) -> Any:
    return value


def _texts(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a function that parses text, and returns other values unchanged."""
    return lambda value: parse(value) if isinstance(value, str) else value


def _address(value: object, *, default_port: int = DATA_PORT) -> Address:
    text = str(value)
    if text.isdigit():
        raise ValueError("write the address as HOST:PORT")
    try:
        return parse_listen(text, default_port=default_port)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _address_or_none(value: object) -> Address | None:
    return None if str(value).strip().lower() == "none" else _address(value, default_port=CONSOLE_PORT)


def _path_or_none(value: object) -> Path | None:
    return None if str(value).strip().lower() == "none" else Path(str(value))


def _store_or_none(value: object) -> StoreUrl | None:
    return None if str(value).strip().lower() == "none" else StoreUrl.parse(str(value))
