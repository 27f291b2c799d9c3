import runpy
from pathlib import Path

from millrace.server.settings.declared import declared

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "build_settings.py"


def test_the_page_of_settings_is_what_the_options_declare() -> None:
    """If it is not: `python docs/build_settings.py`."""
    built = runpy.run_path(str(SCRIPT))

    assert built["PAGE"].read_text(encoding="utf-8") == built["page"]()


def test_every_part_has_a_section() -> None:
    assert {setting.part for setting in declared().values()} == set(runpy.run_path(str(SCRIPT))["SECTIONS"])
