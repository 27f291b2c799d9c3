from millrace import blocking
from millrace.client.testing import TestServer
from tests.cli.conftest import Run


def test_a_stream_is_created_once(ask: Run) -> None:
    first, second = ask("stream", "create", "streams/once", "--segments", 3), ask("stream", "create", "streams/once")

    assert (first.code, second.code) == (0, 0)
    assert "created streams/once with 3 segments" in first.err
    assert "exists, with 3 segments" in second.err


def test_a_stream_is_shown_with_its_cuts_and_segments(ask: Run) -> None:
    ask("stream", "create", "streams/shown", "--segments", 2)

    info = ask("stream", "info", "streams/shown", "--json").json
    text = ask("stream", "info", "streams/shown").out

    assert [(segment["low"], segment["high"]) for segment in info["segments"]] == [(0.0, 0.5), (0.5, 1.0)]
    assert info["head"] == info["tail"]
    assert info["head"] in text


def test_streams_are_listed_by_prefix(ask: Run) -> None:
    for name in ("list-a/x", "list-a/y", "list-b/x"):
        ask("stream", "create", name)

    names = [stream["name"] for stream in ask("stream", "list", "list-a/", "--json").json]
    table = ask("stream", "list", "list-a/")

    assert names == ["list-a/x", "list-a/y"]
    assert [line.split()[0] for line in table.lines] == ["stream", "list-a/x", "list-a/y"]
    assert all(line == line.rstrip() for line in table.lines)


def test_a_stream_is_truncated_at_a_cut(ask: Run) -> None:
    ask("stream", "create", "streams/truncated")

    assert ask("stream", "truncate", "streams/truncated", "tail").code == 0
    assert ask("stream", "truncate", "streams/truncated", "streams/other@1:0.0").code == 2
    assert ask("stream", "truncate", "streams/truncated", "nowhere").code == 2


def test_only_a_sealed_stream_is_deleted(ask: Run) -> None:
    ask("stream", "create", "streams/deleted")

    refused = ask("stream", "delete", "streams/deleted")
    deleted = ask("stream", "delete", "streams/deleted", "--seal")

    assert refused.code == 1
    assert "--seal" in refused.err
    assert deleted.code == 0
    assert "does not exist; nothing was changed" in ask("stream", "delete", "streams/deleted").err


def test_a_sealed_stream_says_so(ask: Run) -> None:
    ask("stream", "create", "streams/sealed")

    assert ask("stream", "seal", "streams/sealed").code == 0
    assert ask("stream", "info", "streams/sealed", "--json").json["sealed"]


def test_a_stream_is_created_with_policies_and_tags(ask: Run) -> None:
    options = ("--events-per-s", 1000, "--min-segments", 2, "--retain-bytes", "1MiB:1GiB", "--tag", "b", "--tag", "a")
    ask("stream", "create", "streams/policies", *options)

    info = ask("stream", "info", "streams/policies", "--json").json
    text = ask("stream", "info", "streams/policies").out

    assert info["scaling"] == {"kind": "events", "target_per_s": 1000, "factor": 2, "min_segments": 2}
    assert (info["retention"]["min_bytes"], info["retention"]["max_bytes"]) == (1 << 20, 1 << 30)
    assert info["tags"] == ["a", "b"]
    assert len(info["segments"]) == 2
    assert "1,000 events/s a segment" in text
    assert "at most 1.0 GiB" in text


def test_an_update_leaves_alone_what_it_does_not_name(ask: Run) -> None:
    ask(
        "stream", "create", "streams/updated", "--bytes-per-s", "1MiB", "--retain-age", "7d", "--tag", "a", "--tag", "b"
    )

    assert ask("stream", "update", "streams/updated", "--untag", "a", "--tag", "c").code == 0
    tagged = ask("stream", "info", "streams/updated", "--json").json
    assert ask("stream", "update", "streams/updated", "--fixed", "--retain-all").code == 0
    fixed = ask("stream", "info", "streams/updated", "--json").json

    assert (tagged["tags"], tagged["scaling"]["kind"], tagged["retention"]["max_age_s"]) == (
        ["b", "c"],
        "bytes",
        604_800,
    )
    assert (fixed["tags"], fixed["scaling"]["kind"], fixed["retention"]) == (["b", "c"], "fixed", None)
    assert "nothing was changed" in ask("stream", "update", "streams/updated", "--fixed").err
    assert ask("stream", "update", "streams/updated", "--retain-all", "--retain-age", "7d").code == 2


def test_event_times_are_bounded(ask: Run) -> None:
    assert ask("stream", "create", "streams/times", "--event-times", "7d:1h").code == 0
    clamped = ask("stream", "update", "streams/times", "--outside-times", "clamp")
    info = ask("stream", "info", "streams/times")
    found = ask("stream", "info", "streams/times", "--json").json["event_times"]
    assert ask("stream", "update", "streams/times", "--event-times", "any").code == 0

    assert found == {"past_s_max": 604_800, "future_s_max": 3600, "outside": "clamp"}
    assert "at most 7 d 0 h before, at most 60 min 00 s after the clock of the server; others" in clamped.err
    assert "others are clamped" in info.out
    assert "event_times" not in ask("stream", "info", "streams/times", "--json").json
    assert ask("stream", "update", "streams/times", "--outside-times", "clamp").code == 2


def test_a_stream_is_given_a_fixed_number_of_segments(ask: Run) -> None:
    ask("stream", "create", "streams/resized", "--events-per-s", "1000")

    resized = ask("stream", "update", "streams/resized", "--segments", "4")
    info = ask("stream", "info", "streams/resized", "--json").json

    assert "4 segments instead of 1" in resized.out + resized.err
    assert (info["scaling"]["kind"], sum(not each["sealed"] for each in info["segments"])) == ("fixed", 4)
    assert "nothing was changed" in ask("stream", "update", "streams/resized", "--segments", "4").err
    assert ask("stream", "update", "streams/resized", "--segments", "4", "--fixed").code == 2


def test_streams_are_listed_by_tag(ask: Run) -> None:
    ask("stream", "create", "tagged/x", "--tag", "winter")
    ask("stream", "create", "tagged/y", "--tag", "summer")
    ask("stream", "create", "tagged-too/x", "--tag", "winter")

    def names(*arguments: str) -> list[str]:
        return [stream["name"] for stream in ask("stream", "list", *arguments, "--json").json]

    assert names("--tag", "winter") == ["tagged-too/x", "tagged/x"]
    assert names("tagged/", "--tag", "winter") == ["tagged/x"]
    assert names("--tag", "spring") == []


def test_a_long_list_is_cut_unless_only_names_are_wanted(ask: Run) -> None:
    for number in range(3):
        ask("stream", "create", f"long/{number}")

    cut = ask("stream", "list", "long/", "--limit", 2)

    assert [line.split()[0] for line in cut.lines] == ["stream", "long/0", "long/1"]
    assert "more than 2" in cut.err
    assert "more" not in ask("stream", "list", "long/", "--limit", 3).err
    assert len(ask("stream", "list", "long/", "--limit", 0, "--json").json) == 3
    assert ask("stream", "list", "long/", "--names").lines == ["long/0", "long/1", "long/2"]


def test_who_has_a_stream_is_shown_and_ended(ask: Run, running: TestServer) -> None:
    ask("stream", "create", "held/a")
    with blocking.connect(running.address) as client:
        client.writer("held/a", writer_id="held:w", exclusive=True).close()

        assert "writer 'held:w' (number " in ask("stream", "info", "held/a").out
        holder = ask("stream", "info", "held/a", "--json").json["exclusive_writer"]
        assert (holder["writer_id"], holder["epoch"]) == ("held:w", 1)
        assert "released held/a from writer 'held:w'" in ask("stream", "release", "held/a").err
        assert "nothing was changed" in ask("stream", "release", "held/a").err
        assert ask("stream", "info", "held/a", "--json").json["exclusive_writer"] is None
        assert "exclusive" not in ask("stream", "info", "held/a").out
        client.writer("held/a").close()
