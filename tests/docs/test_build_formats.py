import runpy
from pathlib import Path

from millrace.wire import schema

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "build_formats.py"


def test_the_page_of_formats_is_what_the_docstrings_say() -> None:
    """If it is not: `python docs/build_formats.py`."""
    built = runpy.run_path(str(SCRIPT))

    assert built["PAGE"].read_text(encoding="utf-8") == built["page"]()


def test_every_module_that_declares_bytes_is_on_the_page() -> None:
    modules = {f"wire/schema/{path.stem}" for path in Path(schema.__path__[0]).glob("*.py")} - {"wire/schema/__init__"}

    assert set(runpy.run_path(str(SCRIPT))["MODULES"]) == {*modules, "model/block_layout"}
