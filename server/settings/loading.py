"""Sources of settings: the command line, the environment, a TOML file, and the defaults.

Earlier sources take precedence. In a file, the settings of a part are a table:

    data_dir = "/var/lib/millrace"
    [wal]
    file_size_bytes = "64 MiB"

Sizes and durations are numbers of bytes and seconds, or texts with a unit. No other module of the server reads the
environment or a file.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from millrace.model.address import Address
from millrace.server.errors import ConfigurationError, SettingError
from millrace.server.object_store import StoreUrl
from millrace.server.options import ServerOptions

from .declared import LISTED, PREFIX, SettingDeclaration, check_name, declared, named_setting, parts, similar

logger = logging.getLogger(__name__)

FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
"""The environment variable with the path of the settings file, if the command line names none."""
OTHERS: Final = frozenset(
    {FILE_VARIABLE, f"{PREFIX}ADDRESS", f"{PREFIX}TOKEN", f"{PREFIX}TOKEN_FILE", f"{PREFIX}CHAOS_SEED"}
)
"""MILLRACE variables that are not settings of a server, but of clients and of tests."""
FLAGS: Final = {
    "data_dir": "--data-dir",
    "listen": "--listen",
    "console": "--console",
    "store": "--store",
    "front.token_file": "--token-file",
    "log.level": "--log-level",
}
"""Settings with an option of their own on the command line; the others use `--set`."""

# Kubernetes sets such variables for a service called millrace.
_KUBERNETES: Final = re.compile(r"MILLRACE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


class Source(StrEnum):
    """Source of a value, in the order of precedence."""

    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting, its value, and the source of the value."""

    declared: SettingDeclaration
    value: Any
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The options of a server, and the source of each.

    Attributes:
        file: the settings file that was read; None for none.
    """

    options: ServerOptions
    settings: tuple[Setting, ...]
    file: Path | None


def load_settings(given: Mapping[str, object], *, file: Path | None = None) -> LoadedSettings:
    """Return the settings of a server: those of the command line, then the other sources. Blocks.

    Args:
        given: values by setting name; None counts as absent.
        file: a TOML file; by default the one that MILLRACE_CONFIG names, if set.

    Raises:
        ConfigurationError: a name is unknown, or a value invalid. Names the setting, its source, and the valid values;
            a line for each.
    """
    if file is None and os.environ.get(FILE_VARIABLE):
        file = Path(os.environ[FILE_VARIABLE])
    by_caller, by_file = _nested(given), _of_file(file) if file else {}
    model = _model(frozenset(parts()) & {*by_caller, *by_file, *_parts_of_environment()})
    found = {Source.COMMAND_LINE: by_caller, Source.ENVIRONMENT: _of_environment(model), Source.FILE: by_file}
    weakest_first = list(reversed(found.items()))
    places = _Places({name: source for source, values in weakest_first for name in _flat(values)}, file)
    merged: dict[str, Any] = {}
    for _, values in weakest_first:
        for key, value in values.items():
            are_parts = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = merged[key] | value if are_parts else value
    try:
        options = _options(_values(model(**merged)), places)
    except ValidationError as error:
        raise ConfigurationError("\n".join(places.problem(each) for each in error.errors())) from None
    settings = (
        Setting(
            declared=each,
            value=getattr(getattr(options, each.part) if each.part else options, each.field),
            source=places.sources.get(name, Source.DEFAULT),
        )
        for name, each in declared().items()
    )
    return LoadedSettings(options=options, settings=tuple(settings), file=file)


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE` texts by name.

    Raises:
        ConfigurationError: a text without `=`, or an unknown name.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"{text!r} has no =; write NAME=VALUE, for instance wal.file_size_bytes=64MiB")
        check_name(name.strip())
        values[name.strip()] = value.strip()
    return values


# --- where it is from ---


def _nested(given: Mapping[str, object]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            part, _, option = name.rpartition(".")
            (values.setdefault(part, {}) if part else values)[option] = value
    return values


def _parts_of_environment() -> Iterator[str]:
    """Yield the prefixes of variables of parts, in either case, as the library accepts them."""
    variables = [name.upper() for name in os.environ]
    for part in parts():
        if any(name.startswith(f"{PREFIX}{part.upper()}") for name in variables):
            yield part


def _of_environment(model: type[BaseSettings]) -> dict[str, Any]:
    names = {setting.variable for setting in declared().values()}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in names | OTHERS:
            _refuse_or_ignore(name, names)
    return EnvSettingsSource(model)()


def _refuse_or_ignore(variable: str, names: set[str]) -> None:
    """Reject a variable that looks like a misspelled setting; ignore other variables.

    Raises:
        ConfigurationError: it begins with the name of a part, or is similar to a setting.
    """
    if not _KUBERNETES.fullmatch(variable):
        meant = similar(variable, names)
        if meant or variable.removeprefix(PREFIX).partition("_")[0].lower() in parts():
            raise ConfigurationError(f"{variable} in the environment is not a setting{meant or LISTED}")
        logger.warning("environment variable ignored name=%s", variable)


def _of_file(file: Path) -> dict[str, Any]:
    import tomllib  # the library imports it, too, only if there is a file

    if not file.is_file():  # the library treats a missing file as empty
        raise ConfigurationError("the settings file does not exist", subject=str(file))
    try:
        return TomlConfigSettingsSource(_model(frozenset()), toml_file=file)()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"is not TOML: {error}", subject=str(file)) from None
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}", subject=str(file)) from error


def _flat(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{option}" for option in value)


# --- what it is ---


class _Settings(BaseSettings):
    """Validates the values. Each source is read separately, so that the source of each value is known."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="_", env_nested_max_split=1, extra="forbid", allow_inf_nan=False
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use the given values only, and no other source."""
        return (init_settings,)


@cache
def _model(of_parts: frozenset[str]) -> type[BaseSettings]:
    """Return the model of all settings, derived from the options of the parts.

    Args:
        of_parts: parts with a value. The others accept anything: to make a model of each part would take several times
            as long as all the rest of reading the settings.
    """
    nested: dict[str, Any] = {part: (_model_of(part) if part in of_parts else Any, {}) for part in parts()}
    return create_model("Settings", __base__=_Settings, **_fields_of(""), **nested)


@cache
def _model_of(part: str) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    return create_model(part, __config__=config, **_fields_of(part))


def _fields_of(part: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for each in declared().values():
        if each.part == part:
            # An address is one text here; the library would treat each attribute of a class as a setting.
            annotation = Any if each.annotation in (Address, Address | None, StoreUrl | None) else each.annotation
            made[each.option] = (Annotated[annotation, BeforeValidator(each.kind.read)], each.default)
    return made


def _values(model: BaseModel) -> dict[str, Any]:
    """Return the values that were set, and no defaults."""
    values = {name: getattr(model, name) for name in model.model_fields_set}
    return {name: _values(value) if isinstance(value, BaseModel) else value for name, value in values.items()}


def _options(values: Mapping[str, Any], places: "_Places") -> ServerOptions:
    """Return the options with these values.

    Raises:
        ConfigurationError: a part rejects a value.
    """
    part, made = "", {}
    own = {each.field: values[each.option] for each in declared().values() if not each.part and each.option in values}
    try:
        for part, kind in parts().items():
            made[part] = kind(**values.get(part, {}))
        part = ""
        return ServerOptions(**own, **made)
    except SettingError as error:
        place = places.place(named_setting(part, error.option).name)
        raise ConfigurationError(f"{place} is {error.value}; it must be {error.right}") from None


@dataclass(frozen=True, slots=True)
class _Places:
    """The name of a setting at the source of its value."""

    sources: Mapping[str, Source]
    file: Path | None

    def place(self, name: str) -> str:
        """Return the name of a setting as it was written, and its source."""
        source = self.sources.get(name, Source.DEFAULT)
        if source is Source.ENVIRONMENT:
            return PREFIX + name.replace(".", "_").upper()
        if source is Source.FILE:
            return f"{self.file}: {name}"
        return FLAGS.get(name, name) if source is Source.COMMAND_LINE else name

    def problem(self, error: ErrorDetails) -> str:
        """Return the problem of one value, in a line."""
        name = ".".join(str(step) for step in error["loc"])
        place = self.place(name)
        if error["type"] == "extra_forbidden":
            names = parts() if isinstance(error["input"], dict) else declared()
            return f"{place} is not a setting{similar(name, names) or LISTED}"
        if name in parts():
            return f"{place} is {error['input']!r}; it must be a table, [{name}]"
        setting = declared()[name]
        shown = setting.text(error["input"]) if setting.is_secret else repr(error["input"])
        return f"{place} is {shown}; it must be {setting.kind.right}"
