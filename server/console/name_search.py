"""A search for parts of names among any number of them: it ends after so many, and says where to resume."""

from collections.abc import AsyncIterator


async def search_names(
    names: AsyncIterator[str], *, contains: str, count_max: int, scanned_count_max: int
) -> tuple[list[str], str | None]:
    """Return the first names that contain a text, in any case, and the name after which the search resumes.

    That is None when there are no others. Cancelling is safe.

    Args:
        names: in their order; not closed here.
        count_max: so many are returned at most, and
        scanned_count_max: so many are looked at.
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
