from concurrent.futures import Future

from millrace.cli.input_lines import Lines
from millrace.cli.write_account import LineAccount, ResumeAdvice


def group(first: int, count: int) -> Lines:
    return Lines(range(first, first + count), [b"x"] * count)


def test_lines_count_as_stored_up_to_the_first_that_is_not() -> None:
    account = LineAccount()
    first, second, third = (Future[None]() for _ in range(3))
    for lines, future in ((group(2, 3), first), (group(5, 2), second), (group(7, 4), third)):
        account.sent(lines, future)
    first.set_result(None)
    second.set_exception(OSError())
    third.set_result(None)
    account.close()

    assert (account.stored_through, account.stored_count, account.sent_count) == (4, 7, 9)
    assert account.doubtful_count == 6
    assert ResumeAdvice(arguments=["write", "a/b"], writer_id=None).text(account, "a/b") == (
        "7 lines are stored in a/b; up to 6 lines after line 4 may be, too; to resume after line 4: "
        "tail -n +5 FILE | millrace write a/b"
    )


def test_a_cancelled_write_is_not_stored() -> None:
    account = LineAccount()
    future = Future[None]()
    account.sent(group(1, 1), future)
    assert future.cancel()
    account.close()

    assert (account.stored_through, account.stored_count) == (-1, 0)


def test_a_named_writer_is_given_everything_again() -> None:
    account = LineAccount(stored_through=9, stored_count=5, sent_count=5)
    resuming = ResumeAdvice(
        arguments=["write", "a/b", "--writer-id", "two words"], writer_id="two words", resumed_through=4
    )

    assert resuming.text(account, "a/b") == (
        "5 lines are stored in a/b, after line 4 of earlier runs; to resume, give the whole input again, and stored "
        "lines are skipped: millrace write a/b --writer-id 'two words' < FILE"
    )


def test_what_was_typed_cannot_be_given_again() -> None:
    assert (
        ResumeAdvice(arguments=[], writer_id=None, is_typed=True).text(LineAccount(), "a/b")
        == "0 lines are stored in a/b"
    )
