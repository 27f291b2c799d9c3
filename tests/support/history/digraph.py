"""Cycles of directed graphs: found in linear time, and each reported by a shortest cycle."""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

Reason = TypeVar("Reason")

EDGES_SEARCHED_MAX: Final = 500_000
"""Bounds the search for a shortest cycle in a large component; a cycle is found in any case."""


class Edge(NamedTuple, Generic[Reason]):
    """An edge to another node, and why it exists."""

    target: int
    reason: Reason


class Digraph(Generic[Reason]):
    """A graph that grows by nodes, numbered from 0, and edges.

    A *passage* is a node that only joins edges, so that n edges in and m edges out stand for n times m: it does not
    count in the length of a cycle.
    """

    def __init__(self) -> None:
        self._edges: list[list[Edge[Reason]]] = []
        self._lengths: list[int] = []

    def add_node(self, *, is_passage: bool = False) -> int:
        """Add a node, and return its number."""
        self._edges.append([])
        self._lengths.append(0 if is_passage else 1)
        return len(self._edges) - 1

    def add_edge(self, source: int, target: int, reason: Reason) -> None:
        """Add an edge."""
        self._edges[source].append(Edge(target, reason))

    def cycles(self) -> Iterator[list[tuple[int, Edge[Reason]]]]:
        """Yield one cycle of each strongly connected component, as edges with their sources.

        It is a shortest cycle, unless the component is so large that the search is cut off (`EDGES_SEARCHED_MAX`).
        """
        for component in self._components():
            yield self._shortest_cycle(component)

    def _components(self) -> Iterator[list[int]]:
        """Yield the strongly connected components with a cycle (Tarjan, 1972, without recursion)."""
        indexes = [-1] * len(self._edges)
        lows = [0] * len(self._edges)
        is_on_stack = bytearray(len(self._edges))
        stack: list[int] = []
        count = 0
        for root in range(len(self._edges)):
            if indexes[root] >= 0:
                continue
            todo = [(root, iter(self._edges[root]))]
            while todo:
                node, edges = todo[-1]
                if indexes[node] < 0:
                    indexes[node] = lows[node] = count
                    count += 1
                    stack.append(node)
                    is_on_stack[node] = 1
                for target, _ in edges:
                    if indexes[target] < 0:
                        todo.append((target, iter(self._edges[target])))
                        break
                    if is_on_stack[target]:
                        lows[node] = min(lows[node], indexes[target])
                else:
                    todo.pop()
                    if todo:
                        parent = todo[-1][0]
                        lows[parent] = min(lows[parent], lows[node])
                    if lows[node] == indexes[node]:
                        place = _last_index(stack, node)
                        component = stack[place:]
                        del stack[place:]
                        for each in component:
                            is_on_stack[each] = 0
                        if len(component) > 1 or any(edge.target == node for edge in self._edges[node]):
                            yield component

    def _shortest_cycle(self, component: list[int]) -> list[tuple[int, Edge[Reason]]]:
        members = set(component)
        shortest: list[tuple[int, Edge[Reason]]] = []
        length, searched = len(component) + 1, 0
        # Each cycle with a length goes through a node that counts; those of passages alone are left for the end.
        for start in sorted(component, key=lambda node: -self._lengths[node]):
            if shortest and searched > EDGES_SEARCHED_MAX:
                break
            found, edges_count = self._cycle_through(start, members, length)
            searched += edges_count
            if found:
                shortest, length = found, sum(self._lengths[source] for source, _ in found)
        return shortest

    def _cycle_through(
        self, start: int, members: set[int], length_max: int
    ) -> tuple[list[tuple[int, Edge[Reason]]], int]:
        """Return a shortest cycle through a node if it is shorter than a length; and how many edges were followed."""
        lengths = {start: 0}
        came_by: dict[int, tuple[int, Edge[Reason]]] = {}
        todo = deque([start])
        searched = 0
        best = length_max
        while todo:
            node = todo.popleft()
            if lengths[node] >= best:
                continue
            for edge in self._edges[node]:
                searched += 1
                length = lengths[node] + self._lengths[edge.target]
                if edge.target == start and length < best:
                    best = length
                    came_by[start] = node, edge
                elif edge.target in members and length < min(best, lengths.get(edge.target, best)):
                    lengths[edge.target] = length
                    came_by[edge.target] = node, edge
                    if self._lengths[edge.target]:
                        todo.append(edge.target)
                    else:
                        todo.appendleft(edge.target)
        if start not in came_by:
            return [], searched
        cycle = [came_by[start]]
        while cycle[-1][0] != start:
            cycle.append(came_by[cycle[-1][0]])
        return cycle[::-1], searched


def _last_index(stack: list[int], node: int) -> int:
    place = len(stack) - 1
    while stack[place] != node:
        place -= 1
    return place
