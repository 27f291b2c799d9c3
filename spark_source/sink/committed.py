"""Asking whether a batch is committed."""

from millrace.client.blocking import connect
from millrace.client.errors import ProducerUnknownError
from millrace.model.cut import StreamCut
from millrace.spark_source.errors import SourceError

from .identity import transaction_name


def committed(
    address: str,
    writer_id: str,
    batch_id: int,
    *,
    stream: str | None = None,
    token: str | None = None,
    tls: bool | None = None,
) -> StreamCut | None:
    """Return a stream cut with all events of a batch before it, or None if the batch is not committed.

        committed("127.0.0.1:9240", "cook", 17)
        committed("127.0.0.1:9240", "cook", 17, stream="shop/cooked")    # with a dead-letter stream, too

    A batch without tasks commits nothing: it counts as committed when a later one is.

    Args:
        writer_id: the option of the sink; the id of the query where it has none.
        stream: the stream that the cut is of. It may be left out if the batch has written to one stream. It is needed
            if the batch has written to several (the dead-letter stream counts), to none, or so long ago that the
            server has forgotten where (7 days).
        token, tls: as in `millrace.connect`.

    Raises:
        SourceError: the batch is committed, and `stream` has to be given.
        StreamNotFoundError: there is no such stream.
        MillraceError: the server cannot be asked.
    """
    with connect(address, token=token, tls=tls) as client:
        try:
            known = client.producer_info(writer_id)
        except ProducerUnknownError:
            return None
        if known.holder is None or known.last_sequence is None or batch_id > known.last_sequence:
            return None
        if stream is not None:
            return client.stream_cut(stream)
        cuts = client.transaction_outcome(transaction_name(writer_id, known.holder, batch_id)).cuts
        if len(cuts) != 1:
            found = f"it has written to {', '.join(cuts)}" if cuts else "it is not known to which stream it has written"
            raise SourceError(f"batch {batch_id} of {writer_id} is committed, and {found}: name the stream")
        return next(iter(cuts.values()))
