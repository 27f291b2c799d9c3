"""A bounded substring search over any number of names, which returns where to resume."""

from collections.abc import AsyncIterator


async def search_names(
    names: AsyncIterator[str], *, contains: str, count_max: int, scanned_count_max: int
) -> tuple[list[str], str | None]:
    """Return the first names that contain a text, ignoring case, and the name after which to resume the search.

    The latter is None at the end. Cancelling is safe.

    Args:
        names: in order; not closed here.
        count_max: the most names to return, and
        scanned_count_max: the most names to examine.
    """
    found: list[str] = []
    wanted = contains.casefold()
    scanned_count, last = 0, ""
    async for name in names:
        is_wanted = wanted in name.casefold()
        if scanned_count == scanned_count_max or (is_wanted and len(found) == count_max):
            return found, last
        if is_wanted:
            found.append(name)
        scanned_count, last = scanned_count + 1, name
    return found, None
