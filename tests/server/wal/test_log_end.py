from millrace.server.wal.batch import encode_batch
from millrace.server.wal.log_end import Ending, classify_end, find_batch
from tests.support.tables import table
from tests.support.wal import append_run

SALT = 0x1122334455667788


def batch(sequence: int, payload: bytes = b"hello", *, salt: int = SALT) -> bytes:
    encoded = encode_batch(
        [append_run(7, 0, payload)], sequence=sequence, salt=salt, previous_checksum=0, wall_time_us=0
    )
    data = b"".join(encoded.pieces)
    return data + bytes(-len(data) % 8)


@table("is_recycled", [False, True])
@table("salt", [SALT, None])
@table("rest", ["too short", "zeros", "of this salt", "of another salt", "noise"])
def test_every_combination_of_facts_has_its_one_ending(rest: str, salt: int | None, is_recycled: bool) -> None:
    """Behaviour 39, 42: the three ends of a log after which nothing of it follows."""
    content = {
        "too short": b"x" * 63,
        "zeros": bytes(200),
        "of this salt": batch(5)[:100],
        "of another salt": batch(5, salt=1)[:100],
        "noise": b"x" * 200,
    }[rest]

    ending, torn_bytes = classify_end(batch(4) + content, len(batch(4)), salt=salt, is_recycled=is_recycled)

    if rest == "too short":
        assert ending is Ending.END
    elif rest == "zeros":
        assert ending is Ending.ZEROED
    else:
        is_ours = rest == "of this salt" and salt is not None
        assert ending is (Ending.TORN if is_ours or not is_recycled else Ending.END)
    assert (torn_bytes > 0) == (ending is Ending.TORN)


@table(
    ("rest", "is_recycled", "ending", "torn_bytes"),
    [
        (b"", False, Ending.END, 0),
        (bytes(63), False, Ending.END, 0),
        (b"x" * 63, False, Ending.END, 0),
        (bytes(500), False, Ending.ZEROED, 0),
        (bytes(500), True, Ending.ZEROED, 0),
        # What was cut ends in zeros, which are not told from those that were there.
        (batch(5)[:100] + bytes(200), False, Ending.TORN, 93),
        (batch(5)[:100] + bytes(200), True, Ending.TORN, 93),
        (bytes(100) + batch(5)[100:] + bytes(200), False, Ending.TORN, 213),
        # The header did not arrive, and the file held something before: nothing tells it from that.
        (bytes(100) + batch(5)[100:] + bytes(200), True, Ending.END, 0),
        (batch(3, salt=1) + batch(4, salt=1), True, Ending.END, 0),
        # Whatever stale bytes follow, the incomplete batch is no longer than it says.
        (batch(5)[:150] + b"\1" * 500, True, Ending.TORN, 213),
    ],
)
def test_the_bytes_after_the_last_batch_are_named(
    rest: bytes, is_recycled: bool, ending: Ending, torn_bytes: int
) -> None:
    data = batch(4) + rest
    offset = len(batch(4))

    assert classify_end(data, offset, salt=SALT, is_recycled=is_recycled) == (ending, torn_bytes)


def test_a_later_batch_is_found_at_its_border_only() -> None:
    data = b"\xff" * 40 + batch(7)

    found = find_batch(data, 0, salt=SALT, sequence_min=1)

    assert found is not None
    assert (found.offset, found.sequence) == (40, 7)
    assert find_batch(b"\xff" * 41 + batch(7), 0, salt=SALT, sequence_min=1) is None
    assert find_batch(data, 41, salt=SALT, sequence_min=1) is None
    assert find_batch(data, 0, salt=SALT, sequence_min=8) is None
    assert find_batch(data, 0, salt=SALT + 1, sequence_min=1) is None


def test_a_batch_of_any_salt_is_found_where_the_salt_is_unknown() -> None:
    data = b"MRWB" * 4 + batch(7, salt=99)

    found = find_batch(data, 0, salt=None, sequence_min=7)

    assert found is not None
    assert (found.offset, found.salt) == (16, 99)


def test_a_table_alone_is_proof_of_a_later_write() -> None:
    data = bytearray(bytes(64) + batch(7))
    data[-10] ^= 1

    assert find_batch(bytes(data), 0, salt=SALT, sequence_min=7) is not None
    data[64 + 64] ^= 1
    assert find_batch(bytes(data), 0, salt=SALT, sequence_min=7) is None


def test_older_batches_inside_are_passed_over() -> None:
    data = bytes(8) + batch(3) + batch(4) + batch(9)

    found = find_batch(data, 0, salt=SALT, sequence_min=5)

    assert found is not None
    assert found.sequence == 9
