"""How an object store is named: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`."""

import re
from dataclasses import dataclass
from typing import Final, Self

FORMS: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
"""What a URL may look like, as it continues "it must be"."""

_URL: Final = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]*)((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A part of a bucket. Keys and account are not in it: they come from the environment."""

    scheme: str
    bucket: str
    prefix: str
    """Of all keys, without the slash at its end; empty for the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what a text names; a slash at its end means nothing.

        Raises:
            ValueError: it is none of the forms, or has parts that would not be the same everywhere.
        """
        match = _URL.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} names no object store; write {FORMS}")
        return cls(match[1], match[2], match[3].removeprefix("/"))

    def __str__(self) -> str:
        """Return the URL."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
