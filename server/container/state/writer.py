"""The state of one writer in memory."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
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

    writer_number: int
    writer_id: str
    epoch: int
    opened_us: int
    active_us: int = 0
    expired_us: int = 0
    seen_uptime_us: int = 0
    admitted_epoch: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.admitted_epoch = self.epoch
        self.active_us = self.active_us or self.opened_us
