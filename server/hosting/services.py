"""The services of an open container: those of its kinds, and the scaling of streams.

The container owns log, state and checkpoints; here is everything that only uses it. When the container is opened again
after a failure, all of this is made again with it.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

from millrace.server.container.leases import LeaseClock
from millrace.server.container.running import OpenContainer
from millrace.server.container.service import Collaborators
from millrace.server.front.handlers import Handlers
from millrace.server.host.supervisor import Supervisor
from millrace.server.kinds.writers.expiry import WriterExpiryLoop
from millrace.server.kinds.writers.uptime import Uptime, boot_id
from millrace.server.options import ServerOptions
from millrace.server.streams import ScalingLoop
from millrace.server.streams.service import SCALING

Collaborator = TypeVar("Collaborator")


class ContainerServices:
    """Everything that works on one open container; `start` begins what runs by itself.

    Attributes:
        opened: the container.
        handlers: answer the requests about it.
    """

    def __init__(self, opened: OpenContainer, options: ServerOptions) -> None:
        container = opened.container
        services = [*(kind.service for kind in container.state.kinds if kind.service is not None), SCALING]
        self.opened = opened
        self._made = Collaborators(
            [
                container,
                opened.checkpoints,
                Uptime(container, options.writers, boot=boot_id()),
                LeaseClock(container.clock, is_open=lambda: not container.is_lapsed),
                *(getattr(options, each.name) for each in fields(options)),
            ],
            {of: make for service in services for of, make in service.factories.items()},
        )
        self._running = [service.begin(self._made) for service in services]
        self.handlers = Handlers(
            container,
            [requests for each in self._running for requests in each.requests],
            {request: ordered for each in self._running for request, ordered in each.ordered.items()},
        )

    @property
    def streams(self) -> ScalingLoop:
        """What scales and truncates its streams."""
        return self.get(ScalingLoop)

    @property
    def expiry(self) -> WriterExpiryLoop:
        """What forgets its idle writers."""
        return self.get(WriterExpiryLoop)

    def get(self, of: type[Collaborator]) -> Collaborator:
        """Return the object of a class that works on the container."""
        return self._made.get(of)

    def statistics(self) -> Mapping[str, object]:
        """Return the figures of the services by part, as of now. May be called from any thread."""
        return {part: figures() for each in self._running for part, figures in each.statistics.items()}

    def start(self, supervisor: Supervisor) -> None:
        """Start what runs by itself; nothing, where the log has lost content: then nothing is to be changed."""
        if self.opened.container.loss is not None:
            return
        supervisor.start(self.opened.flusher.run(), name="flusher")
        for each in self._running:
            for name, run in each.loops.items():
                supervisor.start(run(), name=name)
        supervisor.start(self.opened.clean_tier2(), name="clean tier 2")
        supervisor.start(self.opened.verify_checkpoint(), name="verification")
