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
    """Return a cut that all of a batch is before, once it is committed; None while it is not.

    A batch without tasks commits nothing: it counts as committed when a later one is.

    Args:
        writer_id: the option of the sink; the id of the query where it has none.
        stream: of which stream; needed where a batch has written to several, or to none, or is so old that the server
            has forgotten to which (7 days).
        token, tls: as in `millrace.connect`.

    Raises:
        SourceError: it is committed, and the stream has to be named.
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
