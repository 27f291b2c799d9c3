"""Translates errors of obstore into the errors of `ObjectStore`.

obstore has few kinds of errors; for the rest, the status of the answer is in the text. An error that is not recognised
counts as an open outcome, which is always safe.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""In an answer of the store, or in the client's error about one of several keys to delete."""
_BUSY: Final = (429, 503)
_LATER: Final = (408, 409, 425)
"""Statuses that blame the request, but after which the same request may succeed on retry."""
_LATER_CODES: Final = ("RequestTimeout", "OperationAborted", "ConditionalRequestConflict")
_UNDONE_CODES: Final = ("SlowDown", "ServerBusy", "OperationAborted", "ConditionalRequestConflict")
"""With 409 and 503 these codes show that the store itself rejected the request. A 503 without a code may come from a
gateway that had already forwarded the request; MinIO returns SlowDownWrite after it has begun to write."""
_TOO_MANY: Final = 429
_FULL: Final = 507
_QUOTA_CODES: Final = ("QuotaExceeded", "XMinioAdminBucketQuotaExceeded")
"""Of Ceph and MinIO, with 403 and 400: a quota is checked before anything is written."""
_FULL_CODES: Final = (*_QUOTA_CODES, "XMinioStorageFull")
"""MinIO may have written a part when a disk is full. EntityTooLarge is about the request: waiting does not help."""
_NOT_FOUND: Final = 404
_OBJECT_MISSING_CODES: Final = ("", "NoSuchKey", "BlobNotFound", "ResourceNotFound")
"""With 404: the object is missing, not the bucket. An answer to a HEAD never has a code."""
_KEY_UNKNOWN: Final = "the store does not know the access key"
_CREDENTIALS: Final = {
    "InvalidAccessKeyId": _KEY_UNKNOWN,
    "XAdminUserNotFound": _KEY_UNKNOWN,  # of versitygw, with 404
    "SignatureDoesNotMatch": "the secret key is not that of the access key",
    "AccessDenied": "the store does not permit it to this access key",
}
"""Explanations of codes that concern the caller's identity."""
_METADATA_HOST: Final = "169.254.169.254"
"""The metadata service from which cloud machines fetch credentials; tried last, if there are no others."""
_NOTHING_TO_COMPARE: Final = "required for conditional update"
"""Raised by the client itself without a request: the store had returned no tag or version for the object."""
_REASON_SIZE_MAX: Final = 300


@contextmanager
def translated(key: str) -> Iterator[None]:
    """Translate an error of obstore that the body raises.

    Args:
        key: the subject of the request; empty for the store as a whole.

    Raises:
        ObjectExistsError, ObjectChangedError, ObjectNotFoundError, StoreRefusedError: nothing was changed.
        StoreUnavailableError: the outcome is open, unless `changed_nothing` is set; also if the store is full.
    """
    try:
        yield
    except (OSError, NotImplementedError) as error:
        raise meaning(error, key) from error
    except Exception as error:
        if not type(error).__module__.startswith("obstore"):
            raise
        raise meaning(error, key) from error


def status_of(error: Exception) -> int:
    """Return the HTTP status that an error reports, 0 if there was no answer."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


def meaning(error: Exception, key: str) -> StorageError:
    """Return the `ObjectStore` error for an error of obstore."""
    kind, text = type(error).__name__, str(error)
    status, code = status_of(error), _code_in(text)
    reason = _reason(text, status, code)
    is_undone = status == _TOO_MANY or (status in (409, 503) and code in _UNDONE_CODES)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return StoreRefusedError(f"the bucket does not exist ({reason})", subject=key)
    if code in _CREDENTIALS:
        return StoreRefusedError(f"{_CREDENTIALS[code]} ({reason})", subject=key)
    if status == _NOT_FOUND and code not in _OBJECT_MISSING_CODES:
        return StoreRefusedError(f"the store misses something other than the object ({reason})", subject=key)
    if status == _FULL or code in _FULL_CODES:
        return StoreFullError(f"it is full ({reason})", subject=key, changed_nothing=code in _QUOTA_CODES)
    if status in _BUSY or code == "SlowDown":
        return StoreBusyError(f"the store rate-limits requests ({reason})", subject=key, changed_nothing=is_undone)
    if _METADATA_HOST in text:
        reason = f"no credentials in the environment or from this machine's metadata service ({reason})"
        return StoreUnavailableError(reason, subject=key)
    if code in _LATER_CODES or (status in _LATER and code != "BlobAlreadyExists"):
        return StoreUnavailableError(
            f"the store could not do it now ({reason})", subject=key, changed_nothing=is_undone
        )
    if kind == "AlreadyExistsError":
        return ObjectExistsError("the object already exists", subject=key)
    if kind in ("PreconditionError", "NotModifiedError"):
        return ObjectChangedError("the object is another one, or is gone", subject=key)
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError("the object does not exist", subject=key)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or 400 <= status < 500:
        return StoreRefusedError(f"the store does not permit it ({reason})", subject=key)
    if kind in ("NotSupportedError", "NotImplementedError") or status == 501:
        return StoreRefusedError(f"the store does not know how to do it ({reason})", subject=key)
    if _NOTHING_TO_COMPARE in text:
        return StoreRefusedError("the store returns no version for an object", subject=key)
    if "redirect without LOCATION" in text:
        return StoreRefusedError("the bucket is in another region; set AWS_REGION", subject=key)
    return StoreUnavailableError(f"the store does not answer ({reason})", subject=key)


def _code_in(text: str) -> str:
    match = _CODE.search(text)
    if match is not None:
        return match[1] or match[2]
    return "BlobAlreadyExists" if "BlobAlreadyExists" in text else ""


def _reason(text: str, status: int, code: str) -> str:
    """Return the reason in one line: the store's message, or the library's about the connection."""
    if status or code:
        return f"{status or ''} {code}".strip()
    line = text.partition("\n")[0]
    return line.rpartition(" - ")[2][:_REASON_SIZE_MAX]
