"""Tables of cases as one test: `@table` is `pytest.mark.parametrize` without an item for each case.

An item costs fixtures, a report and a place in each worker's collection; a case of a pure function costs a call::

    @table("text", ["", "a/b/c", "a//b"])
    def test_a_wrong_name_is_refused(text: str) -> None: ...

All cases run, whatever fails. The failures are raised together, each with a note that names its case. Use
`pytest.mark.parametrize` where cases need fixtures of their own.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

Test = Callable[..., Any]
Names = str | list[str] | tuple[str, ...]

_Parameters = type(pytest.param())


def table(names: Names, cases: Iterable[Any], *, ids: Any = None) -> Callable[[Test], Test]:
    """Run the decorated test once for each of `cases`, as one item.

    `names`, `cases` and `ids` are those of `pytest.mark.parametrize`: a case is a value, or a tuple where there are
    several names. Tables may be stacked. The failures of all cases are raised as one `ExceptionGroup`.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [_row(arguments, case) for case in cases]
    if not rows:
        raise ValueError("a table needs at least one case")
    labels = list(_labels(rows, ids))

    def decorate(test: Test) -> Test:
        def attempts() -> Iterator[tuple[dict[str, Any], AbstractContextManager[None]]]:
            failures: list[Exception] = []
            for label, (_, values) in zip(labels, rows, strict=True):
                yield values, _collected(failures, label)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(rows)} cases of {test.__name__} failed", failures)

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_each_async(**fixtures: Any) -> None:
                for values, attempt in attempts():
                    with attempt:
                        await test(**fixtures, **values)

            return _without(run_each_async, test, arguments)

        @functools.wraps(test)
        def run_each(**fixtures: Any) -> None:
            for values, attempt in attempts():
                with attempt:
                    test(**fixtures, **values)

        return _without(run_each, test, arguments)

    return decorate


def _row(arguments: list[str], case: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the id of a case, if it has one, and its arguments by name."""
    label = case.id if isinstance(case, _Parameters) else None
    values = tuple(case.values) if isinstance(case, _Parameters) else (case,) if len(arguments) == 1 else tuple(case)
    return (label if isinstance(label, str) else None), dict(zip(arguments, values, strict=True))


def _labels(rows: list[tuple[str | None, dict[str, Any]]], ids: Any) -> Iterator[str]:
    given = None if ids is None or callable(ids) else list(ids)
    for number, (label, arguments) in enumerate(rows):
        if label is None and given is not None:
            label = given[number]
        elif label is None and callable(ids):
            label = "-".join(str(ids(value)) for value in arguments.values())
        yield label or ", ".join(f"{name}={value!r}" for name, value in arguments.items())


@contextmanager
def _collected(failures: list[Exception], label: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 (raised with those of the other cases)
        error.add_note(f"case: {label}")
        failures.append(error)


def _without(wrapper: Test, test: Test, arguments: list[str]) -> Test:
    """Hide the arguments of the table from pytest, which takes the others for fixtures."""
    signature = inspect.signature(test)
    missing = [name for name in arguments if name not in signature.parameters]
    if missing:
        raise ValueError(f"{test.__name__} does not have the arguments {missing} of its table")
    others = [each for name, each in signature.parameters.items() if name not in arguments]
    wrapper.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return wrapper
