"""The fingerprint of a batch: its streams, and a digest of the offsets in the checkpoint of its query.

The server recognises a batch by writer id and number alone. A checkpoint that was copied, restored from a backup or
pointed at other streams asks for the same numbers with other content. So the commit stores a fingerprint, and the
driver compares it when the server answers that a batch is committed already.

The digest is of `offsets/N`, which Spark writes before it runs batch N and reads again when it repeats the batch,
without the second line: it has the time at which the batch was planned. Rows are not compared, since a query may be
nondeterministic. The driver's Python process has no JVM, so only checkpoints in a local or mounted file system can be
read; of others only the streams are compared.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from millrace.client.transactions.producers import ProducerInfo
from millrace.model.limits import FINGERPRINT_SIZE_BYTES_MAX
from millrace.model.producer import Producer
from millrace.spark_source.errors import BatchMismatchError, ReplacedError

from .identity import BATCH_HOLDER

logger = logging.getLogger(__name__)

_DIGEST_SIZE_BYTES: Final = 16
_METADATA_LINE: Final = 1
_WHAT_TO_DO: Final = (
    "Nothing of it was written. Continue with the streams and the checkpoint of the query that committed it. If this is"
    " a fork, or these rows must be stored as well, set the option writerId to a new name: then everything from this"
    " batch on is written, including rows that are stored already"
)

_unread: set[str] = set()
"""Checkpoints whose problem is in the log already; of this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The content of a batch, as far as the sink knows it.

    Attributes:
        streams: to which it is written, sorted; of very many only the first ones.
        streams_digest: of all of them, as hexadecimal digits.
        stream_count: of all of them.
        offsets: digest of the offsets in the checkpoint, as hexadecimal digits; empty if unknown.
    """

    streams: tuple[str, ...]
    streams_digest: str
    stream_count: int
    offsets: str = ""

    @classmethod
    def of(cls, streams: Iterable[str], offsets: str | None = None) -> Self:
        """Return the fingerprint of a batch."""
        names = tuple(sorted(streams))
        digest = _digest("\n".join(names).encode())
        found = cls(streams=names, streams_digest=digest, stream_count=len(names), offsets=offsets or "")
        while len(str(found).encode()) > FINGERPRINT_SIZE_BYTES_MAX:
            names = names[:-1]
            found = cls(streams=names, streams_digest=digest, stream_count=found.stream_count, offsets=found.offsets)
        return found

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return the fingerprint that a commit stored; None if it stored none, or another program's."""
        try:
            content = json.loads(text or "")
            return cls(
                streams=tuple(content["streams"]),
                streams_digest=content["streams_digest"],
                stream_count=content["stream_count"],
                offsets=content["offsets"],
            )
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        """Return the text that the server stores."""
        content = {
            "streams": self.streams,
            "streams_digest": self.streams_digest,
            "stream_count": self.stream_count,
            "offsets": self.offsets,
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False)

    @property
    def streams_text(self) -> str:
        """The names of the streams, for people."""
        left = self.stream_count - len(self.streams)
        return ", ".join(self.streams) + (f" and {left} more" if left else "")


def offsets_digest(checkpoint: str | None, batch: int) -> str | None:
    """Return the digest of the offsets of a batch; None, with a line in the log, if they cannot be read.

    Args:
        checkpoint: a path or a URI, as Spark takes it; None: unknown.
    """
    if checkpoint is None:
        return None
    uri = urlsplit(checkpoint)
    try:
        if uri.scheme not in {"", "file"}:
            raise OSError(f"the driver's Python process reads local files only, not {uri.scheme}:")
        root = Path(uri.path if uri.scheme else checkpoint)
        return digest_of_offsets((root / "offsets" / str(batch)).read_bytes())
    except OSError as error:
        if checkpoint not in _unread:
            _unread.add(checkpoint)
            logger.warning("checkpoint not readable, batches are distinguished by their streams only error=%s", error)
        return None


def digest_of_offsets(content: bytes) -> str:
    """Return the digest of a file of offsets, whenever its batch was planned."""
    lines = content.splitlines()
    return _digest(b"\n".join(lines[:_METADATA_LINE] + lines[_METADATA_LINE + 1 :]))


def check_repeated(known: ProducerInfo, producer: Producer, ours: Fingerprint) -> None:
    """Check that a batch which the server recognised as committed is this one.

    Args:
        known: of the producer, after the server has answered.

    Raises:
        BatchMismatchError: other streams or other offsets were committed under its number, or it is not the last batch.
        ReplacedError: a newer run of the query has committed later batches.
    """
    if known.holder != producer.holder or known.last_sequence is None or known.last_sequence < producer.sequence:
        logger.warning("batch committed before a sequence reset, content not compared batch=%d", producer.sequence)
        return
    is_of_query = producer.holder != BATCH_HOLDER
    whose = f"query {producer.holder}" if is_of_query else "a batch write"
    batch = f"batch {producer.sequence} of writer id {producer.writer_id} ({whose})"
    if known.last_sequence > producer.sequence:
        if not is_of_query:
            return  # a program may repeat all that it has written
        if known.run != producer.run:
            raise ReplacedError(f"run {producer.run} of {producer.holder} was replaced by run {known.run}")
        raise BatchMismatchError(
            f"{batch} was committed earlier, and so were all batches up to {known.last_sequence}. Spark repeats only"
            f" the last batch, so this checkpoint was copied, or restored from a backup. {_WHAT_TO_DO}"
        )
    theirs = Fingerprint.parse(known.fingerprint)
    if theirs is None:
        logger.warning("batch committed without a fingerprint, content not compared batch=%d", producer.sequence)
        return
    if theirs.streams_digest != ours.streams_digest:
        raise BatchMismatchError(
            f"{batch} was committed to {theirs.streams_text}, and now writes to {ours.streams_text}. {_WHAT_TO_DO}"
        )
    if theirs.offsets and ours.offsets and theirs.offsets != ours.offsets:
        raise BatchMismatchError(
            f"{batch} was committed to {theirs.streams_text} with other input: its offsets had the digest"
            f" {theirs.offsets}, and those of this checkpoint have {ours.offsets}. {_WHAT_TO_DO}"
        )


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_SIZE_BYTES).hexdigest()
