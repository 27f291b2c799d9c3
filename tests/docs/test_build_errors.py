import re
import runpy
from pathlib import Path

import pytest

import millrace
from millrace import blocking, spark_source
from millrace.client.testing import server

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "build_errors.py"


def test_the_page_of_errors_is_what_the_classes_say() -> None:
    """If it is not: `python docs/build_errors.py`."""
    built = runpy.run_path(str(SCRIPT))

    assert built["PAGE"].read_text(encoding="utf-8") == built["page"]()


def test_every_public_error_has_a_section_that_says_whether_to_try_again() -> None:
    page = SCRIPT.with_name("errors.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^### (\w+)\n.*?Retry: \*\*(yes|no)\*\*", page, re.MULTILINE | re.DOTALL))

    assert {name: answer == "yes" for name, answer in told.items()} == {
        cls.__name__: cls.retriable
        for module, root in ((millrace, millrace.MillraceError), (spark_source, spark_source.SourceError))
        for name in module.__all__
        if isinstance(cls := getattr(module, name), type) and issubclass(cls, root)
    }


def test_the_program_on_the_page_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", SCRIPT.with_name("errors.md").read_text(), re.DOTALL)
    with server() as running, blocking.connect(running.address) as client:
        client.create_stream("depot/orders")
        client.seal_stream("depot/orders")
        exec(program.replace("127.0.0.1:9240", running.address), {})

    assert capsys.readouterr().out == "the stream takes no more events\n"
