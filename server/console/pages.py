"""The page of the console: files of this package, sent as they are.

The page loads nothing from other sites, runs no script but these files, and inserts no text as markup: the content
security policy makes browsers enforce all three. The page contains no data, so it needs no token.
"""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from .listener import HttpResponse

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # No script can turn text, such as the name of a cursor, into markup: no trusted-types policy allows it.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def load_pages() -> Mapping[str, HttpResponse]:
    """Return the responses by path: `/` and `/static/NAME`."""
    pages = {
        f"/static/{file.name}": HttpResponse(
            HTTPStatus.OK, CONTENT_TYPES[file.name.rpartition(".")[2]], file.read_bytes(), HEADERS
        )
        for file in (files(__package__) / "static").iterdir()
    }
    pages["/"] = pages.pop("/static/index.html")
    return pages
