from tests.cli.conftest import GiveInput, Run


def test_text_is_appended_and_read_back(ask: Run) -> None:
    ask("segment", "create", "segments/text")

    offsets = [ask("segment", "append", "segments/text", text).out for text in ("hello", " world")]

    assert offsets == ["0\n", "5\n"]
    assert ask("segment", "read", "segments/text").out == "hello world"
    assert ask("segment", "read", "segments/text", "--from", 6).out == "world"
    assert ask("segment", "read", "segments/text", "--from", 1, "--max-bytes", 3).out == "ell"


def test_standard_input_is_appended_as_it_is(ask: Run, give_input: GiveInput) -> None:
    ask("segment", "create", "segments/input")
    data = b"line\nno end of line" * 100_000
    give_input(data)

    assert ask("segment", "append", "segments/input").out == "0\n"
    assert ask("segment", "read", "segments/input").out.encode() == data


def test_empty_input_appends_nothing(ask: Run, give_input: GiveInput) -> None:
    ask("segment", "create", "segments/empty")
    give_input(b"")

    outcome = ask("segment", "append", "segments/empty")

    assert (outcome.code, outcome.out) == (0, "")
    assert "nothing was appended" in outcome.err


def test_an_append_may_depend_on_the_length(ask: Run) -> None:
    ask("segment", "create", "segments/conditional")

    assert ask("segment", "append", "segments/conditional", "a", "--expected-offset", 0).code == 0
    refused = ask("segment", "append", "segments/conditional", "b", "--expected-offset", 0)

    assert refused.code == 1
    assert "length=1" in refused.err


def test_the_offsets_of_the_rest_stay_after_a_truncation(ask: Run) -> None:
    ask("segment", "create", "segments/truncated")
    ask("segment", "append", "segments/truncated", "0123456789")

    assert ask("segment", "truncate", "segments/truncated", 4).code == 0
    assert ask("segment", "read", "segments/truncated").out == "456789"
    assert ask("segment", "read", "segments/truncated", "--from", 2).code == 1
    info = ask("segment", "info", "segments/truncated", "--json").json
    assert (info["start_offset"], info["length"]) == (4, 10)


def test_a_sealed_segment_is_followed_to_its_end(ask: Run) -> None:
    ask("segment", "create", "segments/sealed")
    ask("segment", "append", "segments/sealed", "all of it")

    assert ask("segment", "seal", "segments/sealed").code == 0
    assert ask("segment", "read", "segments/sealed", "--follow").out == "all of it"
    assert ask("segment", "append", "segments/sealed", "more").code == 1
    assert "sealed" in ask("segment", "info", "segments/sealed").out


def test_segments_are_listed_and_deleted(ask: Run) -> None:
    ask("segment", "create", "segments-list/a")
    ask("segment", "create", "segments-list/b")

    assert ask("segment", "create", "segments-list/a").code == 1
    assert ask("segment", "delete", "segments-list/a").code == 0
    assert "nothing was changed" in ask("segment", "delete", "segments-list/a").err
    assert [segment["name"] for segment in ask("segment", "list", "segments-list/", "--json").json] == [
        "segments-list/b"
    ]
    assert "segments-list/b" in ask("segment", "list", "segments-list/").out
