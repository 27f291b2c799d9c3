import pytest

from millrace.server.object_store import StoreUrl
from tests.support.tables import table


@table(
    ("text", "parts", "again"),
    [
        ("s3://bucket/a/b", ("s3", "bucket", "a/b"), "s3://bucket/a/b"),
        ("s3://bucket/a/", ("s3", "bucket", "a"), "s3://bucket/a"),
        ("gs://my.bucket", ("gs", "my.bucket", ""), "gs://my.bucket"),
        ("az://container/", ("az", "container", ""), "az://container"),
    ],
)
def test_a_url_has_a_bucket_and_a_prefix(text: str, parts: tuple[str, str, str], again: str) -> None:
    url = StoreUrl.parse(text)

    assert (url.scheme, url.bucket, url.prefix) == parts
    assert str(url) == again


@table(
    "text",
    ["", "bucket", "s3:/bucket", "file:///tmp/x", "s3://", "s3://b//a", "s3://b/../a", "s3://key:secret@b/a", "s3://b/?x=1",
     "s3://b/a b", "s3://b/a\n"],
)  # fmt: skip
def test_what_would_not_be_the_same_everywhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of an object store; write s3://BUCKET/PREFIX"):
        StoreUrl.parse(text)
