"""Commits the transaction of a batch with the tokens of its tasks, or aborts it.

This runs on the driver, in a process of its own: everything it knows comes from the messages of the tasks. It joins the
transaction by name and producer. So the server can always answer that the batch is already committed, or that a newer
run has replaced the query, however late the driver asks.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from millrace.client.client import Client
from millrace.client.errors import (
    BranchTokenError,
    ProducerFencedError,
    ProducerInUseError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from millrace.model.errors import MillraceError
from millrace.spark_source.errors import ReplacedError, SourceError, TransactionLostError

from .fingerprint import Fingerprint, check_repeated, offsets_digest
from .identity import BatchIdentity
from .message import TaskMessage
from .options import SinkOptions
from .task import begin, lost_text

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S: Final = 30.0
"""After that the lease does it."""


async def commit_batch(client: Client, options: SinkOptions, messages: Sequence[TaskMessage]) -> None:
    """Commit what the tasks of a batch have written, and nothing else; do nothing if it is committed already.

    Events of a key are in the order of the messages.

    Raises:
        ReplacedError: another query, or a newer run of this one, has the writer id.
        BatchMismatchError: other streams, or other input, were committed under this number.
        TransactionLostError: the transaction was aborted meanwhile.
        MillraceError: the server refuses, or `outageTimeout` is over. The batch may be committed nevertheless; then the
            next attempt is told so.
    """
    identity = _identity_of(messages)
    refusal = next((message.refusal for message in messages if message.refusal is not None), None)
    if refusal is not None:
        raise ReplacedError(refusal)
    tokens = [message.token for message in messages if message.token is not None]
    producer, fingerprint = identity.producer, None
    if producer is not None:
        offsets = offsets_digest(options.checkpoint or identity.checkpoint, producer.sequence)
        fingerprint = Fingerprint.of(options.all_streams, offsets)
    try:
        transaction = await begin(client, options, identity)
        try:
            if any(message.was_committed for message in messages):
                # The server has said so, and takes nothing back.
                raise SourceError(f"{identity.name} is open, and tasks of it were told that it is committed")
            await transaction.commit(branches=tokens, fingerprint=None if fingerprint is None else str(fingerprint))
            _log_dead_letters(identity, options, messages)
        except BranchTokenError as error:
            # Those of the tasks are of another one of this name, which is over.
            await transaction.abort()
            raise TransactionLostError(lost_text(identity, options, str(error))) from error
        finally:
            transaction.release()
    except TransactionCommittedError as error:
        if producer is not None and fingerprint is not None:
            check_repeated(await client.producer_info(producer.writer_id), producer, fingerprint)
        logger.info("batch already committed transaction=%s reason=%s", identity.name, error)
    except (ProducerFencedError, ProducerInUseError) as error:
        raise ReplacedError(str(error)) from error
    except TransactionAbortedError as error:
        raise TransactionLostError(lost_text(identity, options, str(error))) from error


async def abort_batch(client: Client, options: SinkOptions, messages: Sequence[TaskMessage]) -> None:
    """Abort the transaction of a batch, unless it is committed; if that fails now, its lease ends it later."""
    identity = _identity_of(messages)
    token = next((message.token for message in messages if message.token is not None), None)
    if token is None:
        return  # nothing is there, as far as these tasks know
    try:
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            transaction = await begin(client, options, identity)
            try:
                await transaction.abort()
            finally:
                transaction.release()
    except (MillraceError, TimeoutError) as error:
        # It is committed, or of a newer run, or the server is away: then there is nothing to abort, or the lease does.
        logger.info("batch not aborted transaction=%s reason=%s", identity.name, error)


def _log_dead_letters(identity: BatchIdentity, options: SinkOptions, messages: Sequence[TaskMessage]) -> None:
    if count := sum(message.dead_letters for message in messages):
        logger.warning(
            "dead letters transaction=%s stream=%s count=%d", identity.name, options.dead_letter_stream, count
        )


def _identity_of(messages: Sequence[TaskMessage]) -> BatchIdentity:
    identities = {message.identity for message in messages}
    if len(identities) != 1:
        raise SourceError(f"tasks of one batch have written as {sorted(each.name for each in identities)}")
    return identities.pop()
