"""What works on an open container: the command handlers of its aggregates, and the tasks in the background.

The container owns log, state and checkpoints; here is everything that only uses it. When the container is opened again
after a failure, all of this is made again with it.
"""

from millrace.server.container.checkpoint.writer_tables import WriterArchive
from millrace.server.container.running import OpenContainer
from millrace.server.container.writer_commands import WriterCommands
from millrace.server.front.handlers import Handlers
from millrace.server.front.requests.segments import SegmentRequests
from millrace.server.front.requests.writers import WriterRequests
from millrace.server.host.supervisor import Supervisor
from millrace.server.kinds.producers.requests import ProducerRequests
from millrace.server.kinds.producers.tables import ProducerArchive
from millrace.server.kinds.producers.unused import UnusedProducers
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.streams.requests import StreamRequests
from millrace.server.kinds.streams.tables import StreamArchive
from millrace.server.kinds.transactions.commands import TransactionCommands
from millrace.server.kinds.transactions.expiry import TransactionExpiryLoop
from millrace.server.kinds.transactions.requests import TransactionRequests
from millrace.server.kinds.transactions.tables import TransactionArchive
from millrace.server.options import ServerOptions
from millrace.server.streams import ScalingLoop, Uptime, WriterExpiryLoop, boot_id


class ContainerServices:
    """Everything that works on one open container; `start` begins what runs by itself.

    Attributes:
        opened: the container.
        handlers: answer the requests about it.
        streams: scales and truncates its streams.
        expiry: forgets its idle writers.
        transactions: ends those whose leases ran out.
        unused_producers: are forgotten by `transactions`.
    """

    def __init__(self, opened: OpenContainer, options: ServerOptions) -> None:
        container, checkpoints = opened.container, opened.checkpoints
        uptime = Uptime(container, options.writers, boot=boot_id())
        streams = StreamCommands(container)
        catalog = Catalog(container.state, checkpoints.archive(StreamArchive))
        writers = WriterCommands(container)
        self.opened = opened
        self.streams = ScalingLoop(
            container=container,
            streams=streams,
            catalog=catalog,
            uptime=uptime,
            options=options.streams,
            metrics=options.metrics,
        )
        self.expiry = WriterExpiryLoop(
            container=container,
            writers=writers,
            archive=checkpoints.archive(WriterArchive),
            uptime=uptime,
            options=options.writers,
        )
        transactions = TransactionCommands(container, streams, options=options.transactions)
        self.unused_producers = UnusedProducers(container, transactions.producers, checkpoints.archive(ProducerArchive))
        self.transactions = TransactionExpiryLoop(
            container=container,
            archive=checkpoints.archive(TransactionArchive),
            unused_producers=self.unused_producers,
            options=options.transactions,
        )
        transaction_requests = TransactionRequests(transactions)
        requests = [
            SegmentRequests(container),
            WriterRequests(container, writers, streams),
            StreamRequests(container, streams, catalog, explain=self.streams.explain),
            transaction_requests,
            ProducerRequests(transactions.producers),
        ]
        self.handlers = Handlers(container, requests, transaction_requests.ordered)

    def start(self, supervisor: Supervisor) -> None:
        """Start what runs by itself; nothing, where the log has lost content: then nothing is to be changed."""
        if self.opened.container.loss is not None:
            return
        supervisor.start(self.opened.flusher.run(), name="flusher")
        supervisor.start(self.streams.run(), name="streams")
        supervisor.start(self.expiry.run(), name="writers")
        supervisor.start(self.transactions.run(), name="transactions")
        supervisor.start(self.opened.clean_tier2(), name="clean tier 2")
        supervisor.start(self.opened.verify_checkpoint(), name="verification")
