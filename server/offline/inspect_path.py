"""Any file of a server, or all of them, decoded for people."""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from millrace.model.errors import InvalidArgumentError
from millrace.server.wal import NEWEST_NAME
from millrace.server.wal.log_objects import parse_log_name

from .inspect_checkpoint import COPY_MAGIC, inspect_checkpoint, inspect_copy
from .inspect_checkpoint import MAGIC as CHECKPOINT_MAGIC
from .inspect_chunk import MAGIC as CHUNK_MAGIC
from .inspect_chunk import inspect_chunk
from .inspect_folder import inspect_folder, is_data_folder
from .inspect_log import MAGIC as LOG_MAGIC
from .inspect_log import NEWEST_MAGIC, inspect_log, inspect_log_object, inspect_newest
from .inspect_store import inspect_history
from .owners import OwnerRow, owners
from .remote_history import fetch, opened_store, remote_history
from .report import Report

DEFAULT_LIMIT: Final = 100


def inspect_store(url: str, name: Path | None, *, with_hex: bool = False, at: int = 0, limit: int) -> Report:
    """Return the content of an object store, or of an object in it.

    Args:
        name: of the object, relative to the URL; None for all of them.
    """
    if name is None:
        with remote_history(url) as history:
            return inspect_history(history, asyncio.run(_owners(url, history.containers)), limit=limit)
    with tempfile.TemporaryDirectory(prefix="millrace-inspect-") as folder:
        target = Path(folder) / name
        fetch(url, name.as_posix(), target)
        report = inspect_path(target, with_hex=with_hex, at=at, limit=limit)
    report.path = f"{url}/{name.as_posix()}"
    return report


async def _owners(url: str, containers: list[int]) -> list[OwnerRow]:
    async with opened_store(url) as store:
        return await owners(store, url=url, containers=containers)


def inspect_path(path: Path, *, with_hex: bool = False, at: int = 0, limit: int = DEFAULT_LIMIT) -> Report:
    """Return the content of a file or folder; the first bytes of a file give its type, or its name if they are damaged.

    Raises:
        InvalidArgumentError: it is not a file of a server.
    """
    if path.is_dir():
        if not is_data_folder(path):
            raise InvalidArgumentError(f"{path} is not a data folder")
        return inspect_folder(path, limit=limit)
    with path.open("rb") as file:
        magic = file.read(len(CHECKPOINT_MAGIC))
    name = path.name
    if magic == CHECKPOINT_MAGIC or name.startswith("checkpoint"):
        return inspect_checkpoint(path, with_hex=with_hex, limit=limit)
    if parse_log_name("/".join(path.parts[-2:])):
        return inspect_log_object(path, with_hex=with_hex, limit=limit)
    if magic.startswith(LOG_MAGIC) or name.startswith("wal-"):
        return inspect_log(path, with_hex=with_hex, at=at, limit=limit)
    if magic.startswith(NEWEST_MAGIC) or name == NEWEST_NAME:
        return inspect_newest(path)
    if magic.startswith(COPY_MAGIC) or path.parent.name == "checkpoints":
        return inspect_copy(path, with_hex=with_hex, limit=limit)
    if magic.startswith(CHUNK_MAGIC) or name.endswith(".chunk"):
        return inspect_chunk(path, with_hex=with_hex, at=at, limit=limit)
    raise InvalidArgumentError(f"{path} is not a log file, a chunk or a checkpoint: it starts with {magic[:8]!r}")
