"""What can be set is what the options of the parts declare."""

from dataclasses import MISSING, fields

import pytest

from millrace.server.errors import ConfigurationError
from millrace.server.options import ServerOptions
from millrace.server.settings.declared import check_name, declared, parts
from tests.support.tables import table

NAMES = list(declared())


def test_every_field_of_every_part_is_a_setting() -> None:
    """Nothing that a server can be given is out of reach of a file or of the environment."""
    for part in fields(ServerOptions):
        if part.default is MISSING:
            assert part.name in parts()
    of_parts = {f"{part}.{item.name}" for part, kind in parts().items() for item in fields(kind)}

    assert set(NAMES) == of_parts | {"data_dir", "listen", "console", "store", "standby", "insecure", "shutdown_s"}


@table("name", NAMES)
def test_every_setting_says_what_it_does_in_a_line(name: str) -> None:
    """If it does not: a line below `Attributes:` in the docstring of its class, for this setting alone."""
    setting = declared()[name]

    assert 10 < len(setting.effect) < 250
    assert "\n" not in setting.effect


@table("name", NAMES)
def test_a_default_as_it_is_shown_is_read_again(name: str) -> None:
    setting = declared()[name]
    value = setting.kind.read(setting.text(setting.default))

    assert value == setting.default or value == setting.text(setting.default)


def test_what_is_secret_is_not_shown() -> None:
    """Behaviour 53."""
    assert [name for name in NAMES if declared()[name].is_secret] == ["front.token"]
    assert declared()["front.token"].text("s3cret") == "(hidden)"
    assert declared()["front.token"].text("") == ""


@table(
    ("wrong", "meant"),
    [
        ("wal.file_max", "did you mean wal.files_max?"),
        ("wall", "did you mean wal?"),
        ("wal.file_siz", "did you mean wal.file_size_bytes?"),
        ("x", "`millrace settings` lists"),
    ],
)
def test_a_wrong_name_says_which_is_meant(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{wrong} is not a setting; {meant}".replace("?", r"\?")):
        check_name(wrong)


def test_names_of_settings_and_parts_are_right() -> None:
    for name in (*NAMES, *parts()):
        check_name(name)
