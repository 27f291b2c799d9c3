import pytest

from millrace.server.host.tokens import ADDRESSES_COUNT_MAX, WRONG_COUNT_MAX, TokenGate, Verdict

HERE = "192.0.2.1"
ELSEWHERE = "192.0.2.2"


class Peers:
    """Peers who give tokens at a time."""

    def __init__(self) -> None:
        self._gate = TokenGate("s3crät")
        self.now_s = 100.0

    def give(self, token: str, *, address: str = HERE) -> Verdict:
        return self._gate.judge(token.encode(), address=address, now_s=self.now_s)

    def guess(self, *, address: str = HERE) -> None:
        """Give so many wrong tokens that an address has to wait."""
        given = [self.give(f"guess-{self.now_s}-{number}", address=address) for number in range(WRONG_COUNT_MAX)]
        assert given == [Verdict.WRONG] * WRONG_COUNT_MAX


@pytest.fixture
def peers() -> Peers:
    return Peers()


def test_a_token_is_right_or_wrong(peers: Peers) -> None:
    assert peers.give("s3crät") is Verdict.RIGHT
    assert peers.give("s3cr") is Verdict.WRONG
    assert peers.give("") is Verdict.WRONG
    assert peers.give("s3crät") is Verdict.RIGHT


def test_without_a_token_each_is_right() -> None:
    assert TokenGate("").judge(b"any", address=HERE, now_s=0.0) is Verdict.RIGHT
    assert TokenGate("").judge(b"", address=HERE, now_s=0.0) is Verdict.RIGHT


def test_an_address_that_guesses_has_to_wait_and_learns_nothing_meanwhile(peers: Peers) -> None:
    """Behaviour 53: wrong tokens are rate-limited; also the right one gets no answer."""
    peers.guess()
    assert peers.give("one-more") is Verdict.LATER
    assert peers.give("s3crät") is Verdict.LATER
    assert peers.give("s3crät", address=ELSEWHERE) is Verdict.RIGHT
    peers.now_s += 1.0
    assert peers.give("one-more") is Verdict.WRONG
    assert peers.give("another") is Verdict.LATER
    peers.now_s += 1.0
    assert peers.give("s3crät") is Verdict.RIGHT
    peers.now_s += 1000.0
    peers.guess()
    assert peers.give("one-more") is Verdict.LATER


def test_a_client_that_repeats_an_old_token_keeps_nobody_out(peers: Peers) -> None:
    assert [peers.give("of last year") for _ in range(10 * WRONG_COUNT_MAX)] == [Verdict.WRONG] * 10 * WRONG_COUNT_MAX
    assert peers.give("s3crät") is Verdict.RIGHT


def test_no_token_is_no_guess(peers: Peers) -> None:
    assert {peers.give("") for _ in range(10 * WRONG_COUNT_MAX)} == {Verdict.WRONG}
    assert peers.give("s3crät") is Verdict.RIGHT


def test_so_many_addresses_are_remembered_and_those_that_tried_lately_stay(peers: Peers) -> None:
    peers.guess(address=ELSEWHERE)
    peers.guess()
    for number in range(ADDRESSES_COUNT_MAX - 1):
        peers.give("wrong", address=f"host-{number}")
    assert peers.give("one-more") is Verdict.LATER
    assert peers.give("one-more", address=ELSEWHERE) is Verdict.WRONG
