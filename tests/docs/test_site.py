"""What must fail the build of the site does; the site itself is built by `make lint`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = """\
# A page

[A heading that is not there](#nowhere), [a page that is not there](nothing.md).

![A picture from elsewhere](https://example.org/picture.png)
"""


@pytest.mark.slow
def test_a_broken_link_and_a_page_that_needs_the_network_fail_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text(PAGE, encoding="utf-8")
    program = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]

    built = subprocess.run(
        [*program, "--conf-dir", str(DOCS), str(pages), str(tmp_path / "site")],
        capture_output=True, text=True, check=False, env={"NO_COLOR": "1", **os.environ},
    )  # fmt: skip

    assert built.returncode == 1
    assert "'nowhere'" in built.stderr
    assert "'nothing.md'" in built.stderr
    assert "index.html loads <img" in built.stderr
