"""The streams that a sink writes to, as they are before any work."""

from millrace.client.client import Client
from millrace.client.errors import StreamNotFoundError
from millrace.model.policy import ScalingPolicy, StreamConfig
from millrace.spark_source.errors import OptionError

from .options import SinkOptions


async def check_streams(client: Client, options: SinkOptions) -> None:
    """Check that all streams take events; make those that are not there, if the options say so.

    Raises:
        OptionError: a stream is not there, is sealed, or has an exclusive writer.
    """
    for name in options.all_streams:
        option = "deadLetterStream" if name == options.dead_letter_stream else "stream"
        if options.create_segments is not None:
            await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(options.create_segments)))
        try:
            info = await client.stream_info(name)
        except StreamNotFoundError:
            reason = f"there is no stream {name}; the option createSegments makes it, with so many segments"
            raise OptionError(option, reason) from None
        if info.sealed:
            raise OptionError(option, f"{name} is sealed: it takes no more events")
        if info.exclusive_writer is not None:
            raise OptionError(option, f"{name} takes events from its exclusive writer alone")
