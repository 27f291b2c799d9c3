"""What works on an open container: the services of its kinds, and what streams and writers do by themselves.

The container owns log, state and checkpoints; here is everything that only uses it. When the container is opened again
after a failure, all of this is made again with it.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.checkpoint.writer_tables import WriterArchive
from millrace.server.container.container import SegmentContainer
from millrace.server.container.running import OpenContainer
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.container.writer_commands import WriterCommands
from millrace.server.front.handlers import Handlers
from millrace.server.front.requests.segments import SegmentRequests
from millrace.server.front.requests.writers import WriterRequests
from millrace.server.host.supervisor import Supervisor
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.streams.requests import Explain
from millrace.server.options import ServerOptions
from millrace.server.streams import (
    MetricsOptions,
    ScalingLoop,
    StreamsOptions,
    Uptime,
    WriterExpiryLoop,
    WritersOptions,
    boot_id,
)

Collaborator = TypeVar("Collaborator")


def _segments(made: Collaborators) -> RunningService:
    return RunningService(requests=[SegmentRequests(made.get(SegmentContainer))])


def _writer_expiry(made: Collaborators) -> WriterExpiryLoop:
    return WriterExpiryLoop(
        container=made.get(SegmentContainer),
        writers=made.get(WriterCommands),
        archive=made.get(CheckpointStore).archive(WriterArchive),
        uptime=made.get(Uptime),
        options=made.get(WritersOptions),
    )


def _writers(made: Collaborators) -> RunningService:
    requests = WriterRequests(made.get(SegmentContainer), made.get(WriterCommands), made.get(StreamCommands))
    expiry = made.get(WriterExpiryLoop)
    return RunningService(
        requests=[requests], loops={"writers": expiry.run}, statistics={"writers": lambda: expiry.statistics}
    )


def _scaling_loop(made: Collaborators) -> ScalingLoop:
    return ScalingLoop(
        container=made.get(SegmentContainer),
        streams=made.get(StreamCommands),
        catalog=made.get(Catalog),
        uptime=made.get(Uptime),
        options=made.get(StreamsOptions),
        metrics=made.get(MetricsOptions),
    )


def _scaling(made: Collaborators) -> RunningService:
    scaling = made.get(ScalingLoop)
    return RunningService(loops={"streams": scaling.run}, statistics={"streams": lambda: scaling.statistics})


SERVICES: Final = (
    Service(begin=_segments),
    Service(
        factories={
            WriterCommands: lambda made: WriterCommands(made.get(SegmentContainer)),
            WriterExpiryLoop: _writer_expiry,
        },
        begin=_writers,
    ),
    Service(
        factories={ScalingLoop: _scaling_loop, Explain: lambda made: Explain(made.get(ScalingLoop).explain)},
        begin=_scaling,
    ),
)
"""The services that no kind declares."""


class ContainerServices:
    """Everything that works on one open container; `start` begins what runs by itself.

    Attributes:
        opened: the container.
        handlers: answer the requests about it.
    """

    def __init__(self, opened: OpenContainer, options: ServerOptions) -> None:
        container = opened.container
        services = [*(kind.service for kind in container.state.kinds if kind.service is not None), *SERVICES]
        self.opened = opened
        self._made = Collaborators(
            [
                container,
                opened.checkpoints,
                Uptime(container, options.writers, boot=boot_id()),
                options.streams,
                options.metrics,
                options.writers,
                options.transactions,
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
