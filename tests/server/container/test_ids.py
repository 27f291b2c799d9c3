import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.ids import CONTAINERS_COUNT_MAX, container_of, first_id, scope_of

CONTAINERS = st.integers(0, CONTAINERS_COUNT_MAX - 1)


@given(CONTAINERS, st.integers(0, 2**48 - 2))
def test_a_number_says_where_it_lives_and_fits_into_63_bits(container: int, count: int) -> None:
    number = first_id(container) + count
    assert container_of(number) == container
    assert 0 < number < 2**63


def test_container_0_has_small_numbers() -> None:
    assert first_id(0) == 1


@pytest.mark.parametrize("container", [-1, CONTAINERS_COUNT_MAX])
def test_there_are_so_many_containers(container: int) -> None:
    with pytest.raises(AssertionError):
        first_id(container)


@given(st.lists(CONTAINERS, unique=True))
def test_no_scope_holds_another(containers: list[int]) -> None:
    scopes = [scope_of(container) for container in containers]
    assert not any(one.startswith(other) for one in scopes for other in scopes if one is not other)
