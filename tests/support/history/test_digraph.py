"""Cycles are found wherever they are, and the shortest one of a component is reported."""

import random
from itertools import pairwise

from tests.support.history.digraph import Digraph
from tests.support.tables import table


def graph_of(count: int, edges: list[tuple[int, int]], passages: frozenset[int] = frozenset()) -> Digraph[str]:
    """Return a graph whose edges are named by their ends."""
    graph: Digraph[str] = Digraph()
    for node in range(count):
        graph.add_node(is_passage=node in passages)
    for source, target in edges:
        graph.add_edge(source, target, f"{source}-{target}")
    return graph


def cycles(graph: Digraph[str]) -> list[list[str]]:
    return [[edge.reason for _, edge in cycle] for cycle in graph.cycles()]


def rotated(cycle: list[str]) -> list[str]:
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


@table(
    ("count", "edges"),
    [(0, []), (1, []), (3, [(0, 1), (0, 2), (1, 2)]), (4, [(3, 2), (2, 1), (1, 0), (3, 0), (3, 0)])],
)
def test_a_graph_without_a_cycle_has_none(count: int, edges: list[tuple[int, int]]) -> None:
    assert cycles(graph_of(count, edges)) == []


def test_the_shortest_cycle_of_each_component_is_yielded() -> None:
    ring = list(pairwise([*range(6), 0]))
    found = cycles(graph_of(9, [*ring, (3, 1), (2, 6), (6, 7), (7, 8), (8, 7)]))

    assert sorted(map(rotated, found)) == [["1-2", "2-3", "3-1"], ["7-8", "8-7"]]


def test_a_node_that_leads_to_itself_is_a_cycle() -> None:
    assert cycles(graph_of(2, [(0, 1), (1, 1)])) == [["1-1"]]


def test_passages_do_not_count_in_the_length_of_a_cycle() -> None:
    by_passages = [(0, 2), (2, 3), (3, 4), (4, 1)]
    found = cycles(graph_of(6, [*by_passages, (0, 5), (5, 1), (1, 0)], passages=frozenset({2, 3, 4})))

    assert [rotated(each) for each in found] == [["0-2", "2-3", "3-4", "4-1", "1-0"]]


def test_a_cycle_of_passages_alone_is_found() -> None:
    assert [rotated(each) for each in cycles(graph_of(2, [(0, 1), (1, 0)], passages=frozenset({0, 1})))] == [
        ["0-1", "1-0"]
    ]


@table("seed", range(30))
def test_a_cycle_is_found_if_and_only_if_some_path_returns(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randint(2, 12)
    edges = [(dice.randrange(count), dice.randrange(count)) for _ in range(dice.randint(1, 2 * count))]
    reached = {node: {target for source, target in edges if source == node} for node in range(count)}
    for middle in range(count):
        for node in range(count):
            if middle in reached[node]:
                reached[node] |= reached[middle]

    found = cycles(graph_of(count, edges))

    returning = {node for node in range(count) if node in reached[node]}
    components = {frozenset(other for other in returning if node in reached[other] and other in reached[node])
                  for node in returning}  # fmt: skip
    assert len(found) == len(components)
    for cycle in found:
        ends = [tuple(map(int, each.split("-"))) for each in cycle]
        assert all(one[1] == other[0] for one, other in pairwise([*ends, ends[0]]))


def test_a_long_chain_is_searched_without_recursion() -> None:
    count = 20_000
    assert cycles(graph_of(count, list(pairwise(range(count))))) == []
    (cycle,) = cycles(graph_of(count, [*pairwise(range(count)), (count - 1, 0)]))
    assert len(cycle) == count
