from millrace.server.host.tokens import TokenGate, TokenVerdict


def test_a_token_is_right_wrong_or_missing() -> None:
    gate = TokenGate("s3crät")
    assert gate.judge("s3crät".encode()) is TokenVerdict.RIGHT
    assert gate.judge(b"s3cr") is TokenVerdict.WRONG
    assert gate.judge(b"") is TokenVerdict.MISSING


def test_without_a_token_each_is_right() -> None:
    assert {TokenGate("").judge(given) for given in (b"any", b"")} == {TokenVerdict.RIGHT}


def test_the_right_token_is_accepted_after_any_number_of_wrong_ones() -> None:
    """Behaviour 104: a right token always passes."""
    gate = TokenGate("s3crät")
    assert {gate.judge(f"guess-{number}".encode()) for number in range(100)} == {TokenVerdict.WRONG}
    assert gate.judge("s3crät".encode()) is TokenVerdict.RIGHT
