"""Requests about producers."""

from millrace.wire import messages as m

from .commands import ProducerCommands


class ProducerRequests:
    """Answers requests about producers."""

    def __init__(self, producers: ProducerCommands) -> None:
        self._producers = producers

    async def get_producer(self, message: m.GetProducer) -> m.ProducerInfo:
        return self._producers.describe(message.producer_id)

    async def reset_producer(self, message: m.ResetProducer) -> m.Done:
        changed = await self._producers.reset(
            message.producer_id, expected_holder=message.expected_holder, holder=message.holder
        )
        return m.Done(int(changed))

    async def delete_producer(self, message: m.DeleteProducer) -> m.Done:
        changed = await self._producers.delete(message.producer_id, last_sequence=message.last_sequence)
        return m.Done(int(changed))
