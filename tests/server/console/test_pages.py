"""The files of the page: loaded from this server only, without anything that could run a text."""

import re
from http import HTTPStatus

from millrace.server.console.pages import POLICY, load_pages

PAGES = {path: page.body.decode() for path, page in load_pages().items()}
SVG_NAMESPACE = "http://www.w3.org/2000/svg"


def test_every_file_is_served_with_its_type_and_a_strict_policy() -> None:
    for path, page in load_pages().items():
        assert page.status is HTTPStatus.OK
        assert page.content_type.partition(";")[0] == {
            "/": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"
        }[path.rpartition(".")[2]]  # fmt: skip
        assert page.headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY
    assert "require-trusted-types-for 'script'" in POLICY


def test_nothing_comes_from_elsewhere() -> None:
    for path, text in PAGES.items():
        assert [url for url in re.findall(r"https?://[^\"\s]+", text) if url != SVG_NAMESPACE] == [], path
        assert not re.search(r"@import|url\(", text), path


def test_all_that_a_file_names_is_served() -> None:
    for path, text in PAGES.items():
        named = re.findall(r"(?:href|src)=\"(/static/[^\"]+)\"", text)
        named += [f"/static/{name}" for name in re.findall(r"from \"\./([^\"]+)\"", text)]
        assert set(named) <= set(PAGES), path
        if path == "/":
            assert len(named) == 3


def test_no_text_can_become_markup_or_code() -> None:
    for path, text in PAGES.items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|Function\(", text
        ), path
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), path
    assert re.findall(r"<script[^>]*>[^<]*", PAGES["/"]) == ['<script type="module" src="/static/main.js">']
