"""The state of one writer in memory."""


class Writer:
    """A writer: its number forever, its epoch now; or the mark that is left of a named one that has expired.

    A number identifies what was stored under it: after the expiry its name continues under another number, and under
    epochs above those before.

    Attributes:
        writer_id: empty for an unnamed one.
        active_us: its last durable append or open, by the wall clock; moved only once in `ACTIVITY_STEP_US`.
        expired_us: when its state expired, by the wall clock; 0 while it has not.
        seen_uptime_us: the uptime that was counted when it was active or expired last: its age, which no clock changes.
    """

    __slots__ = (
        "active_us", "admitted_epoch", "epoch", "expired_us", "opened_us", "seen_uptime_us", "writer_id",
        "writer_number",
    )  # fmt: skip

    def __init__(
        self,
        *,
        writer_number: int,
        writer_id: str,
        epoch: int,
        opened_us: int,
        active_us: int = 0,
        expired_us: int = 0,
        seen_uptime_us: int = 0,
    ) -> None:
        self.writer_number = writer_number
        self.writer_id = writer_id
        self.epoch = epoch
        self.admitted_epoch = epoch
        self.opened_us = opened_us
        self.active_us = active_us or opened_us
        self.expired_us = expired_us
        self.seen_uptime_us = seen_uptime_us
