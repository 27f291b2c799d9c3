"""How Sphinx builds the site of docs/: `make docs`, strict, and without the network when it is built or read."""

# ruff: noqa: INP001  # a folder of documents

import re
import sys
import tomllib
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import build_reference  # noqa: E402  # found on the path above

project = "Millrace"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
copyright = "the authors of Millrace"  # noqa: A001  # Sphinx asks for this name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"  # fonts of the system, no script from elsewhere
html_title = f"Millrace {release}"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors that GitHub gives to headings, too
suppress_warnings = ["myst.header"]  # pages of formats begin lower where a docstring ends

default_role = "code"  # `name` in docstrings
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
pygments_style = "default"

logger = logging.getLogger(__name__)


def _fill(_app: Sphinx, name: str, source: list[str]) -> None:
    """Put the generated parts of a page in the place of their markers; keep decisions out of navigation and search."""
    source[0] = build_reference.filled(source[0], ROOT.joinpath("docs", name).parent)
    if re.fullmatch(r"decisions/\d.*", name):
        source[0] = f"---\norphan: true\nnosearch: true\n---\n{source[0]}"


def _generated(_app: Sphinx, environment: Any, _added: set[str], _changed: set[str], _removed: set[str]) -> list[str]:
    """Return the pages with generated parts, which are read again whether their own text has changed or not."""
    texts = {name: environment.doc2path(name).read_text(encoding="utf-8") for name in environment.found_docs}
    return [name for name, text in texts.items() if build_reference.MARKER.search(text)]


def _show_public_bases(_app: Sphinx, _name: str, cls: Any, _options: object, bases: list[Any]) -> None:
    """Show in place of a private base class the public one that it derives from."""
    bases[:] = dict.fromkeys(next(each for each in base.__mro__ if each.__name__[0] != "_") for base in cls.__bases__)


def _mark_examples(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Show what is indented in a docstring as code, before Napoleon reads the docstring."""
    lines[:] = build_reference.with_examples_marked(lines)


def _signature(
    _app: Sphinx, what: str, name: str, thing: Any, _options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Leave out how objects are made that users do not make, and say what a method for threads returns."""
    if what == "class" and not is_dataclass(thing):
        return "", None
    if arguments:
        arguments = arguments.replace("<factory>", "...")
    if name.startswith("millrace.blocking.") and result:
        result = result.replace("AsyncIterator", "Iterator")
    return arguments, result


def _check_offline(app: Sphinx, error: Exception | None) -> None:
    """Warn of pages that load something from elsewhere: the site has to work without a network."""
    loads = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    for page in () if error else Path(app.outdir).rglob("*.html"):
        for tag in loads.findall(page.read_text(encoding="utf-8")):
            logger.warning("%s loads %s", page.relative_to(app.outdir), tag)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _generated)
    app.connect("autodoc-process-bases", _show_public_bases)
    app.connect("autodoc-process-docstring", _mark_examples, priority=100)
    app.connect("autodoc-process-signature", _signature)
    app.connect("build-finished", _check_offline)
