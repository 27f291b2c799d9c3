import pytest

import millrace
from millrace import TransactionState
from millrace.client.testing import TestServer
from tests.cli.conftest import Run


def begin(client: millrace.blocking.Client, name: str, *, prepare: bool = False) -> int:
    """Begin a transaction with two events of a key; return its number."""
    client.create_stream("transactions/all")
    transaction = client.begin_transaction("transactions/all", name=name)
    transaction.write_many([b"1", b"2"], key="k")
    transaction.flush()
    if prepare:
        transaction.prepare()
    return transaction.number


def test_those_that_are_not_over_are_listed(ask: Run, running: TestServer) -> None:
    with millrace.blocking.connect(running.address) as client:
        first, second = begin(client, "listed-1"), begin(client, "listed-2", prepare=True)
        begin(client, "listed-3")
        client.abort_transaction("listed-3")

        shown = ask("txn", "list")
        found = {each["name"]: each for each in ask("txn", "list", "--json").json if each["name"].startswith("listed")}
        client.abort_transaction("listed-1")
        client.abort_transaction("listed-2")

    assert shown.code == 0
    assert shown.lines[0].split() == ["number", "name", "state", "age", "lease", "parts", "size"]
    rows = {line.split()[1]: line.split() for line in shown.lines if " listed-" in line}
    assert (rows["listed-1"][0], rows["listed-1"][2], rows["listed-1"][-3]) == (str(first), "open", "1")
    assert (rows["listed-2"][0], rows["listed-2"][2]) == (str(second), "prepared")
    assert found.keys() == rows.keys() == {"listed-1", "listed-2"}
    assert found["listed-1"].pop("begun_us") > 0
    assert found["listed-1"] == {
        "number": first, "name": "listed-1", "state": "open", "lease_s": 30.0, "part_count": 1,
        "size_bytes": found["listed-2"]["size_bytes"],
    }  # fmt: skip
    assert rows["listed-1"][-2:] == [str(found["listed-1"]["size_bytes"]), "B"]
    assert found["listed-1"]["size_bytes"] > 2


def test_a_transaction_is_shown_and_committed(ask: Run, running: TestServer) -> None:
    with millrace.blocking.connect(running.address) as client:
        number = begin(client, "shown", prepare=True)

        shown, found = ask("txn", "info", "shown"), ask("txn", "info", "shown", "--json").json
        done, again = ask("txn", "commit", "shown"), ask("txn", "commit", "shown")
        outcome = client.transaction_outcome("shown")

    assert [line.split()[0] for line in shown.lines] == [
        "transaction", "number", "state", "begun", "streams", "events",
    ]  # fmt: skip
    assert ["streams", "transactions/all"] in [line.split() for line in shown.lines]
    assert ["events", "2", "in", str(found["size_bytes"]), "B"] in [line.split() for line in shown.lines]
    (begun,) = [line for line in shown.lines if line.startswith("begun")]
    assert begun.endswith(" ago")
    assert (found["streams"], found["branches"]) == (["transactions/all"], [{"branch": 0, "events": 2}])
    assert (found["number"], found["state"], found["event_count"]) == (number, "prepared", 2)
    assert (found["has_expired"], found["decided_us"]) == (False, None)
    assert (done.code, again.code, done.out, done.err) == (0, 0, "", again.err)
    assert "transaction shown is committed at 2" in done.err
    assert outcome.state is TransactionState.COMMITTED
    ended = ask("txn", "info", "shown", "--json").json
    assert (ended["state"], ended["decided_us"] >= ended["begun_us"]) == ("committed", True)
    assert (ended["streams"], ended["size_bytes"], ended["branches"]) == (["transactions/all"], 0, [])
    assert ended["cuts"] == {"transactions/all": str(outcome.cuts["transactions/all"])}
    assert ask("txn", "info", "shown").lines[-1].split()[0] == "decided"
    refused = ask("txn", "abort", "shown")
    assert (refused.code, refused.out) == (1, "")
    assert "committed" in refused.err


def test_a_transaction_is_aborted(ask: Run, running: TestServer) -> None:
    with millrace.blocking.connect(running.address) as client:
        begin(client, "left")

        early = ask("txn", "commit", "left")
        done, again = ask("txn", "abort", "left"), ask("txn", "abort", "left")

    assert early.code == 2
    assert "prepared" in early.err
    assert (done.code, again.code) == (0, 0)
    assert "aborted transaction left" in done.err
    assert "nothing was changed" in again.err
    assert ask("txn", "info", "left", "--json").json["state"] == "aborted"
    assert ask("txn", "commit", "left").code == 1


def test_a_transaction_without_a_name_is_aborted_by_its_number(ask: Run, running: TestServer) -> None:
    """Behaviour 104: what fills a bound can be ended by a command."""
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("transactions/unnamed")
        transaction = client.begin_transaction("transactions/unnamed")
        transaction.ping()  # now the server knows it
        number = transaction.number

        done, again = ask("txn", "abort", "--number", str(number)), ask("txn", "abort", "--number", str(number))

        assert number not in [each.number for each in client.list_transactions()]
        with pytest.raises(millrace.InvalidArgumentError, match="the name of a transaction, or its number"):
            client.abort_transaction("left", number=number)
    assert (done.code, again.code) == (0, 0)
    assert f"aborted transaction {number}" in done.err
    assert "nothing was changed" in again.err
    for arguments in ((), ("left", "--number", "7")):
        assert ask("txn", "abort", *arguments).code == 2


def test_a_producer_is_shown_and_reset(ask: Run, running: TestServer) -> None:
    """Behaviour 69: the error of another holder names the command, which gives the writer id to it."""
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("transactions/all")
        for run in ("r1", "r2"):
            with client.transaction("transactions/all", producer=("query-x", "first", run, 7 + int(run[1]))) as batch:
                batch.commit(fingerprint="3f9c")
        with pytest.raises(millrace.ProducerInUseError, match="millrace txn reset query-x --holder second"):
            client.begin_transaction("transactions/all", producer=("query-x", "second", "s1", 0))

        shown, found = ask("txn", "producer", "query-x"), ask("txn", "producer", "query-x", "--json").json
        done = ask("txn", "reset", "query-x", "--holder", "second")
        again = ask("txn", "reset", "query-x", "--holder", "second")
        client.begin_transaction("transactions/all", producer=("query-x", "second", "s1", 0)).abort()
        freed = ask("txn", "reset", "query-x")

    assert [line.split()[0] for line in shown.lines] == ["producer", "holder", "run", "last", "fenced", "fingerprint"]
    assert found == {
        "writer_id": "query-x", "holder": "first", "run": "r2", "last_sequence": 9, "fenced_runs": ["r1"],
        "fingerprint": "3f9c",
    }  # fmt: skip
    assert (done.code, again.code, freed.code) == (0, 0, 0)
    assert "belongs to second; its sequences start over" in done.err
    assert "nothing was changed" in again.err
    assert "the next one that begins" in freed.err
    left = ask("txn", "producer", "query-x", "--json").json
    assert left == {
        "writer_id": "query-x", "holder": None, "run": None, "last_sequence": None, "fenced_runs": ["r1", "r2", "s1"],
        "fingerprint": None,
    }  # fmt: skip
    assert "the next program that begins" in ask("txn", "producer", "query-x").out


def test_a_producer_is_deleted(ask: Run, running: TestServer) -> None:
    """Behaviour 104: a producer that has committed something only by its last sequence."""
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("transactions/all")
        with client.transaction("transactions/all", producer=("query-y", "first", "r1", 7)):
            pass
    refused = ask("txn", "delete-producer", "query-y")
    done = ask("txn", "delete-producer", "query-y", "--last-sequence", "7")
    again = ask("txn", "delete-producer", "query-y", "--last-sequence", "7")

    assert (refused.code, refused.out) == (1, "")
    assert "millrace txn delete-producer query-y --last-sequence 7" in refused.err
    assert (done.code, again.code) == (0, 0)
    assert "deleted producer query-y" in done.err
    assert "nothing was changed" in again.err
    assert ask("txn", "producer", "query-y").code == 1


@pytest.mark.parametrize("command", ["producer", "reset"])
def test_a_producer_that_is_not_there_is_an_error(ask: Run, command: str) -> None:
    unknown = ask("txn", command, "nobody")

    assert (unknown.code, unknown.out) == (1, "")
    assert "the producer does not exist" in unknown.err


@pytest.mark.parametrize("command", ["info", "commit", "abort"])
def test_a_transaction_that_is_not_there_is_an_error(ask: Run, command: str) -> None:
    unknown = ask("txn", command, "nothing")

    assert (unknown.code, unknown.out) == (1, "")
    assert "does not exist, or was forgotten" in unknown.err
    assert ask("txn", command).code == 2


def test_a_stream_is_sealed_over_a_prepared_transaction_by_force(ask: Run, running: TestServer) -> None:
    """Behaviour 21: the command says which one is in the way."""
    stream = "transactions/sealed"
    with millrace.blocking.connect(running.address) as client:
        client.create_stream(stream)
        with client.transaction(stream, name="in-the-way") as transaction:
            transaction.write(b"1")
            transaction.prepare()

        refused = ask("stream", "seal", stream)
        assert (refused.code, refused.out) == (1, "")
        assert "transaction in-the-way is prepared" in refused.err
        assert not client.stream_info(stream).sealed
        with pytest.raises(millrace.TransactionPreparedError, match="in-the-way"):
            client.seal_stream(stream)

        assert ask("stream", "seal", stream, "--force").code == 0
        assert client.stream_info(stream).sealed
        assert client.transaction_outcome("in-the-way").state is TransactionState.ABORTED


def test_the_branches_of_one_that_was_joined_are_shown(ask: Run, running: TestServer) -> None:
    with millrace.blocking.connect(running.address) as client:
        begin(client, "joined")
        begin(client, "joined")

        shown, found = ask("txn", "info", "joined"), ask("txn", "info", "joined", "--json").json
        client.abort_transaction("joined")

    assert [each["events"] for each in found["branches"]] == [2, 2]
    (line,) = [line for line in shown.lines if line.startswith("branches")]
    assert line.split()[1:3] == ["0:", "2,"]
    assert ["lease", "30.0", "s"] in [line.split() for line in shown.lines]
