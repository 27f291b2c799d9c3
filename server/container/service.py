"""A service of an open container: objects that decide, answer requests and run in the background.

A *service* is the share of one kind in that. It declares how its objects are made. An object that several services need
is made once, when it is first needed, and is found by its class.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.server.host.metric_help import Figures
from millrace.wire import messages as m

from .requests import OrderedRequest

Collaborator = TypeVar("Collaborator")


class Collaborators:
    """The objects that work on one container, found by their class and made when first needed.

    Args:
        given: objects that exist already.
        factories: by class, how the others are made.
    """

    def __init__(self, given: Iterable[object], factories: Mapping[type, Callable[["Collaborators"], object]]) -> None:
        self._objects: dict[type, Any] = {type(each): each for each in given}
        self._factories = factories

    def get(self, of: type[Collaborator]) -> Collaborator:
        """Return the object of a class.

        Raises:
            KeyError: no service makes one.
        """
        if of not in self._objects:
            self._objects[of] = self._factories[of](self)
        found: Collaborator = self._objects[of]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """The objects of a service on one container.

    Attributes:
        requests: objects whose methods answer requests, see `handlers_of`.
        ordered: requests that are decided in the order in which they were sent.
        loops: what runs in the background until it is cancelled, by the name of its task. A container whose log has
            lost content runs none: nothing is to be changed.
        statistics: by part, what returns its figures as a record; called from any thread.
    """

    requests: Sequence[object] = ()
    ordered: Mapping[type[m.Message], OrderedRequest] = field(default_factory=dict)
    loops: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)
    statistics: Mapping[str, Callable[[], object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How the objects of a service are made.

    Attributes:
        factories: by class, how objects are made that this service or others need.
        begin: returns the objects of the service; called when the container was opened.
        figures: the metrics of its statistics.
    """

    factories: Mapping[type, Callable[[Collaborators], object]] = field(default_factory=dict)
    begin: Callable[[Collaborators], RunningService]
    figures: Figures = field(default_factory=dict)
