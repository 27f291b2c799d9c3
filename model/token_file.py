"""Token files: one line of text, the token."""


def parse_token(content: bytes) -> str:
    """Return the token in the content of a token file, without surrounding white space.

    Raises:
        ValueError: the content is not one line of UTF-8, or is empty. The message does not show the content.
    """
    try:
        token = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ValueError("the token is not UTF-8") from None
    if not token:
        raise ValueError("the file holds no token")
    if len(token.splitlines()) > 1:
        raise ValueError("the file has several lines; a token is one line")
    return token
