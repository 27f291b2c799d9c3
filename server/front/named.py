"""What a request names: the segments, streams and writers that must be in memory when it is carried out."""

from dataclasses import dataclass

from millrace.wire import frames as f
from millrace.wire.limits import SEGMENTS_PER_STREAM_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Keys of what a request is about; by number, or by name."""

    segments: tuple[int | str, ...] = ()
    writers: tuple[int | str, ...] = ()
    streams: tuple[int | str, ...] = ()


NOTHING = Named()


def named_by(message: f.Message) -> Named:
    """Return what a request names. With a stream its segments are meant too."""
    match message:
        case f.CreateSegment(name=name):
            return Named(segments=(name,))
        case f.GetSegment(segment_id=segment_id, name=name):
            return Named(segments=(segment_id or name,))
        case (
            f.SealSegment(segment_id=segment_id)
            | f.TruncateSegment(segment_id=segment_id)
            | f.DeleteSegment(segment_id=segment_id)
            | f.SetAttribute(segment_id=segment_id)
            | f.GetAttribute(segment_id=segment_id)
            | f.GetIndex(segment_id=segment_id)
            | f.Seek(segment_id=segment_id)
            | f.Read(segment_id=segment_id)
            | f.Subscribe(segment_id=segment_id)
        ):
            return Named(segments=(segment_id,))
        case f.MergeSegment(target_id=target_id, source_id=source_id):
            return Named(segments=(target_id, source_id))
        case (
            f.OpenWriter(writer_id=writer_id, segment_ids=segment_ids)
            | f.GetWriter(writer_id=writer_id, segment_ids=segment_ids)
        ):
            # Of more than are allowed none is brought: the request will be refused.
            return Named(
                writers=(writer_id,), segments=tuple(segment_ids) if len(segment_ids) <= SEGMENTS_PER_STREAM_MAX else ()
            )
        case (
            f.CreateStream(name=name)
            | f.GetStream(name=name)
            | f.SealStream(name=name)
            | f.TruncateStream(name=name)
            | f.DeleteStream(name=name)
            | f.ScaleStream(name=name)
            | f.UpdateStream(name=name)
            | f.GetStreamHistory(name=name)
            | f.ExplainStream(name=name)
            | f.ListCuts(name=name)
        ):
            return Named(streams=(name,))
        case f.SaveCut(stream=name) | f.ForgetCut(stream=name):
            return Named(streams=(name,))
    return NOTHING
