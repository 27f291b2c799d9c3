"""URLs of object stores: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`."""

import re
from dataclasses import dataclass
from typing import Final, Self

FORMS: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
"""The valid forms of a URL, as a continuation of "it must be"."""

_URL: Final = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]*)((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A prefix in a bucket. Credentials and account are not part of it: they come from the environment."""

    scheme: str
    bucket: str
    prefix: str
    """Prefix of all keys, without its final slash; empty for the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL; a final slash is ignored.

        Raises:
            ValueError: the text has none of the forms, or has parts that are not portable between stores.
        """
        match = _URL.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not the URL of an object store; write {FORMS}")
        return cls(match[1], match[2], match[3].removeprefix("/"))

    def __str__(self) -> str:
        """Return the URL."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
