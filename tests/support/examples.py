"""How many examples a property test tries."""

from hypothesis import settings


def examples(count: int) -> int:
    """Return `count` times the thoroughness of the loaded profile: once in `make test`, ten times in `thorough`."""
    return count * settings().max_examples // 100
