import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.main import COMMANDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
BUILT: dict[str, Any] = runpy.run_path(str(DOCS / "build_reference.py"))


def test_each_command_has_a_section_with_its_options() -> None:
    text = BUILT["commands"]()

    named = re.findall(r"^## millrace (\w+)$", text, re.MULTILINE)
    assert named == list(COMMANDS)
    assert "### millrace stream create\n" in text
    assert "| `--data-dir DIR` | Folder with all data of the server" in text
    assert "--help" not in text


def test_indented_paragraphs_of_a_docstring_become_code() -> None:
    lines = ["A summary.", "", "    with it:", "        pass", "", "Raises:", "    ValueError: it is wrong."]

    assert BUILT["with_examples_marked"](lines) == [
        "A summary.", "", "::", "", "    with it:", "        pass", "", "Raises:", "    ValueError: it is wrong.",
    ]  # fmt: skip


def test_each_error_and_each_decision_is_listed() -> None:
    assert ".. autoexception:: millrace.WriterFencedError\n" in BUILT["errors"]()
    assert ".. autoexception:: millrace.spark_source.RowError\n" in BUILT["errors"]()
    assert BUILT["decisions"]().count("\n- [") == len(list((DOCS / "decisions").glob("0*.md")))


def test_each_public_name_is_on_a_page() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "reference" / "python").glob("*.rst")]
    text = "".join([*pages, BUILT["errors"](), BUILT["others"]()])

    assert [name for name in BUILT["public_names"]() if f":: {name}\n" not in text] == []
    assert "autoclass:: millrace.Client\n" not in BUILT["others"]()


def test_only_what_has_members_is_shown_with_them() -> None:
    assert BUILT["_directive"]("millrace.HEAD") == ".. autodata:: millrace.HEAD\n\n"
    assert BUILT["_directive"]("millrace.connect") == ".. autofunction:: millrace.connect\n\n"
    assert "   :members:\n" in BUILT["_directive"]("millrace.Client")


def test_an_optional_entry_is_there_with_its_page(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("# One", encoding="utf-8")
    text = "always\n<!-- if there: one -->\n<!-- if there: two -->\nat last\n"

    assert BUILT["filled"](text, tmp_path) == "always\none\nat last\n"


def test_a_marker_that_means_nothing_is_refused() -> None:
    with pytest.raises(KeyError, match="nothing"):
        BUILT["filled"]("# A page\n\n<!-- generated: nothing -->\n", DOCS)


def test_the_site_is_built_by_what_ci_runs() -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]

    assert "$(SITE)" in lint
    assert "--fail-on-warning" in makefile
