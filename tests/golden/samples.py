"""One message of each type that the golden bytes hold, with values that tell the fields apart."""

from typing import Final

from millrace.wire import frames as f

SAMPLES: Final[dict[str, tuple[int, int, f.Message]]] = {
    "hello": (
        1,
        0,
        f.Hello(
            version_min=1,
            version_max=2,
            features=0x0102030405060708,
            frame_size_max=16 << 20,
            client="millrace-python/0.1 ä",
            token="secret",
        ),
    ),
    "hello_reply": (
        1,
        0,
        f.HelloReply(
            version=1,
            features=3,
            frame_size_max=(16 << 20) + 64,
            append_size_max=16 << 20,
            appends_in_flight_max=65536,
            server_id=bytes(range(16)),
            server="millrace/0.1",
        ),
    ),
    "error": (
        2,
        0,
        f.ErrorReply(
            code=22,
            retriable=0,
            retry_after_ms=1500,
            start_offset=-1,
            length=1 << 40,
            subject="shop/orders#3",
            message="segment is sealed",
            successors=[7, 8, (1 << 64) - 1],
        ),
    ),
    "ping": (7, 0, f.Ping()),
    "pong": (7, 0, f.Pong()),
    "throttle": (0, 0, f.Throttle(250, "log is full")),
    "done": (3, 0, f.Done(1)),
    "append_ack": (0, 0, f.AppendAck([f.AppendAckEntry(4, 1 << 33, 3, 0), f.AppendAckEntry(9, -1, 1, 1)])),
    "create_segment": (5, 0, f.CreateSegment("raw/a")),
    "get_segment": (6, 0, f.GetSegment(0, "raw/a")),
    "segment_info": (
        6,
        0,
        f.SegmentInfo(
            segment_id=11,
            start_offset=12,
            length=13,
            event_count=14,
            created_us=1_700_000_000_000_000,
            sealed=1,
            name="raw/a",
        ),
    ),
    "seal_segment": (8, 0, f.SealSegment(11)),
    "truncate_segment": (9, 0, f.TruncateSegment(11, 1 << 34)),
    "delete_segment": (10, 0, f.DeleteSegment(11)),
    "merge_segment": (11, 0, f.MergeSegment(target_id=11, source_id=12)),
    "list_segments": (12, 0, f.ListSegments("raw/", "raw/a", 100)),
    "segment_list": (
        12,
        0,
        f.SegmentList(
            [
                f.SegmentDescription(1, 2, 3, 4, 5, 0, "raw/b"),
                f.SegmentDescription(6, 7, 8, 9, -1, 1, "raw/c"),
            ],
            1,
        ),
    ),
    "read": (13, 0, f.Read(segment_id=11, offset=1 << 35, size_max=65536, wait_ms=5000)),
    "data": (13, 3, f.Data(segment_id=11, offset=1 << 35, length=(1 << 35) + 5, payload=b"bytes")),
    "subscribe": (14, 0, f.Subscribe(11, 12, 1 << 20)),
    "credit": (14, 0, f.Credit(1 << 19)),
    "unsubscribe": (14, 0, f.Unsubscribe()),
    "set_attribute": (
        15,
        0,
        f.SetAttribute(segment_id=11, expected_present=1, present=0, key="mark", expected=b"old", value=b""),
    ),
    "get_attribute": (16, 0, f.GetAttribute(11, "mark")),
    "attribute": (16, 0, f.Attribute(1, b"\x00\xffvalue")),
    "open_writer": (17, 0, f.OpenWriter("till-7", [11, 12], 1)),
    "writer_opened": (
        17,
        0,
        f.WriterOpened(
            writer_number=21,
            writer_epoch=2,
            known=1,
            active_us=1_700_000_000_000_011,
            expired_us=1_700_000_000_000_012,
            states=[f.WriterState(11, 1 << 36), f.WriterState(12, 0)],
        ),
    ),
    "get_writer": (18, 0, f.GetWriter("", [])),
    "get_index": (19, 0, f.GetIndex(segment_id=11, start=1, end=1 << 37, spacing_bytes=65536, count_max=1000)),
    "seek": (20, 0, f.Seek(11, -1_000_000)),
    "index": (20, 0, f.Index([f.IndexEntry(0, 0, 1), f.IndexEntry(65536, 655, 1_700_000_000_000_001)])),
    "create_stream": (21, 0, f.CreateStream("shop/orders", 4, '{"scaling": "fixed"}')),
    "get_stream": (22, 0, f.GetStream("shop/orders")),
    "stream_info": (
        22,
        0,
        f.StreamInfo(
            created=1,
            stream_id=31,
            created_us=1_700_000_000_000_002,
            epoch=7,
            sealed=0,
            name="shop/orders",
            configuration="{}",
            segments=[
                f.StreamSegment(32, 0, (1 << 63) - 1, 5, 0, 1, 2, 3, 0),
                f.StreamSegment(33, 1 << 63, (1 << 64) - 1, 6, 7, 4, 5, 6, 1),
            ],
        ),
    ),
    "list_streams": (23, 0, f.ListStreams("shop/", "", 1000, "winter")),
    "stream_list": (23, 0, f.StreamList([f.StreamName("shop/orders"), f.StreamName("shop/returns")], 0)),
    "seal_stream": (24, 0, f.SealStream("shop/orders")),
    "truncate_stream": (25, 0, f.TruncateStream("shop/orders", [f.CutPosition(32, 7), f.CutPosition(33, 1 << 38)])),
    "delete_stream": (26, 0, f.DeleteStream("shop/orders")),
    "scale_stream": (
        27,
        0,
        f.ScaleStream(
            "shop/orders", [32], [f.KeyRangeRecord(0, (1 << 62) - 1), f.KeyRangeRecord(1 << 62, (1 << 63) - 1)]
        ),
    ),
    "get_stream_history": (28, 0, f.GetStreamHistory("shop/orders")),
    "stream_history": (
        28,
        0,
        f.StreamHistory(
            [
                f.EpochRecord(0, 1_700_000_000_000_006, "created", [], [f.SegmentRangeRecord(32, 0, (1 << 64) - 1)]),
                f.EpochRecord(
                    1,
                    1_700_000_000_000_007,
                    "asked for",
                    [32],
                    [f.SegmentRangeRecord(33, 0, 1 << 63), f.SegmentRangeRecord(34, (1 << 63) + 1, (1 << 64) - 1)],
                ),
            ]
        ),
    ),
    "update_stream": (29, 0, f.UpdateStream("shop/orders", '{"retention": null}')),
    "explain_stream": (30, 0, f.ExplainStream("shop/orders")),
    "explanation": (30, 0, f.Explanation('{"stream": "shop/orders"}')),
    "save_cut": (
        31,
        0,
        f.SaveCut(
            stream="shop/orders",
            kind=1,
            name="before the sale",
            positions=[f.SavedPosition(33, 7, 2), f.SavedPosition(34, 1 << 40, 0)],
        ),
    ),
    "forget_cut": (32, 0, f.ForgetCut("shop/orders", 1, "before the sale")),
    "list_cuts": (33, 0, f.ListCuts("shop/orders")),
    "cut_list": (
        33,
        0,
        f.CutList([f.SavedCut(2, "nightly", 1_700_000_000_000_008, [f.SavedPosition(33, 8, 1)])]),
    ),
    "segment_created": (0, 0, f.SegmentCreated(11, 1_700_000_000_000_003, "raw/a")),
    "segment_sealed": (0, 0, f.SegmentSealed(11)),
    "segment_truncated": (0, 0, f.SegmentTruncated(11, 1 << 39)),
    "segment_deleted": (0, 0, f.SegmentDeleted(11)),
    "segment_merged": (
        0,
        0,
        f.SegmentMerged(target_id=11, source_id=12, target_offset=13, source_start=14, size=15, event_count=16),
    ),
    "attribute_set": (0, 0, f.AttributeSet(segment_id=11, present=1, key="mark", value=b"new")),
    "writer_recorded": (
        0,
        0,
        f.WriterRecorded(writer_number=21, writer_epoch=3, opened_us=1_700_000_000_000_004, writer_id="till-7"),
    ),
    "writers_expired": (
        0,
        0,
        f.WritersExpired(expired_us=1_700_000_000_000_013, marked=[21, 22], forgotten=[23]),
    ),
    "uptime_counted": (0, 0, f.UptimeCounted(86_400_000_000)),
    "stream_created": (
        0,
        0,
        f.StreamCreated(
            stream_id=31,
            created_us=1_700_000_000_000_005,
            name="shop/orders",
            configuration="{}",
            segments=[f.SegmentRangeRecord(32, 0, (1 << 63) - 1), f.SegmentRangeRecord(33, 1 << 63, (1 << 64) - 1)],
        ),
    ),
    "stream_scaled": (
        0,
        0,
        f.StreamScaled(
            stream_id=31,
            epoch=1,
            scaled_us=1_700_000_000_000_009,
            cause="above its target",
            sealed_ids=[32],
            created=[f.SegmentRangeRecord(34, 0, 1 << 61), f.SegmentRangeRecord(35, (1 << 61) + 1, (1 << 63) - 1)],
        ),
    ),
    "stream_updated": (0, 0, f.StreamUpdated(31, '{"tags": ["winter"]}')),
    "cut_saved": (
        0,
        0,
        f.CutSaved(
            stream_id=31, kind=2, name="nightly", saved_us=1_700_000_000_000_010, positions=[f.SavedPosition(33, 8, 1)]
        ),
    ),
    "cut_forgotten": (0, 0, f.CutForgotten(31, 2, "nightly")),
    "stream_sealed": (0, 0, f.StreamSealed(31)),
    "stream_truncated": (0, 0, f.StreamTruncated(31, [f.CutPosition(32, 9)])),
    "stream_deleted": (0, 0, f.StreamDeleted(31)),
}
"""By the name of the file: request id, flags, message."""

APPEND: Final = {
    "request_id": 41,
    "segment_id": 42,
    "payload": b"three events",
    "event_count": 3,
    "writer_number": 43,
    "writer_epoch": 44,
    "event_number": 45,
    "expected_offset": 46,
}
"""The fields of the append in `append.hex`, which has no message."""
