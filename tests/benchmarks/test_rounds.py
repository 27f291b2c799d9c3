from benchmarks.rounds import interleaved, median_by, median_of, spread


def test_rounds_are_interleaved() -> None:
    order: list[str] = []

    def work(name: str) -> int:
        order.append(name)
        return len(order)

    results = interleaved({"a": lambda: work("a"), "b": lambda: work("b")}, rounds=2)

    assert order == ["a", "b", "a", "b"]
    assert results == {"a": [1, 3], "b": [2, 4]}


def test_the_median_result_is_one_that_was_measured() -> None:
    assert median_by([3.0, 1.0, 2.0, 9.0], float) == 2.0
    assert median_of([3.0, 1.0, 2.0, 9.0], float) == 2.5


def test_the_spread_names_rounds_and_distance() -> None:
    assert spread([1.0, 1.5], float) == "2 rounds within 50%"
    assert spread([0.0, 1.5], float) == ""
