"""Progress of a streaming query, from its own reports: no server is asked."""

import json
from typing import TYPE_CHECKING

from millrace.model.cut import StreamCut

from .errors import CheckpointError, SourceError
from .positions import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def cuts_of(query: "StreamingQuery") -> dict[str, StreamCut]:
    """Return the cut that a query has processed of each of its streams of Millrace, by name: that of its last batch.

    What lies before it is in the sink. It is empty before the first batch; after a restart, until there is progress.

    Raises:
        SourceError: the query reads one stream twice, and has come to different places.
    """
    progress = query.lastProgress
    cuts: dict[str, StreamCut] = {}
    for source in progress.sources if progress is not None else ():
        try:
            content = json.loads(source.endOffset)
            offset = StreamOffset.from_json(content if isinstance(content, dict) else {})
        except (CheckpointError, TypeError, ValueError):
            continue  # another kind of source, or no offset yet
        for stream, cut in offset.cuts.items():
            if cuts.setdefault(stream, cut) != cut:
                raise SourceError(f"the query reads {stream} twice, and has come to {cuts[stream]} and to {cut}")
    return cuts


def cut_of(query: "StreamingQuery", stream: str | None = None) -> StreamCut | None:
    """Return the cut that a query has processed of a stream; None if it has none yet. See `cuts_of`.

    Args:
        stream: needed where the query reads several.

    Raises:
        SourceError: it reads several, and none is named, or one of them twice.
    """
    cuts = cuts_of(query)
    if stream is not None:
        return cuts.get(stream)
    if len(cuts) > 1:
        raise SourceError(f"the query reads several streams, name one: {', '.join(cuts)[:200]}")
    return next(iter(cuts.values()), None)
