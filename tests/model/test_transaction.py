import pytest

from millrace.model.transaction import BranchesError, TransactionState, check_branches, digest_of_branches
from tests.support.tables import table


def test_a_commit_takes_what_was_stored() -> None:
    assert check_branches({3: 10, 4: 20}, stored={4: 20, 3: 10}, drops_others=False) == []


@table("named", [{3: 11}, {3: 9}, {3: 10, 5: 1}])
def test_a_commit_of_other_events_than_were_stored_is_refused(named: dict[int, int]) -> None:
    """Behaviour 28: an append that was refused does not become half a commit."""
    with pytest.raises(BranchesError, match=r"branch \d has \d+ events, and \d+ are to be committed"):
        check_branches(named, stored={3: 10}, drops_others=True)


def test_a_branch_without_events_need_not_have_parts() -> None:
    assert check_branches({0: 0, 3: 10}, stored={3: 10}, drops_others=False) == []


def test_a_branch_that_is_left_out_is_an_error_unless_it_is_dropped() -> None:
    with pytest.raises(BranchesError, match=r"branches \[4, 5\] are left out"):
        check_branches({3: 10}, stored={3: 10, 5: 1, 4: 0}, drops_others=False)

    assert check_branches({3: 10}, stored={3: 10, 5: 1, 4: 0}, drops_others=True) == [4, 5]


def test_the_branch_that_every_transaction_has_may_be_left_out_while_it_is_empty() -> None:
    assert check_branches({3: 10}, stored={0: 0, 3: 10}, drops_others=False) == [0]
    with pytest.raises(BranchesError, match=r"branches \[0\] are left out"):
        check_branches({3: 10}, stored={0: 2, 3: 10}, drops_others=False)


def test_a_digest_tells_one_choice_of_branches_from_another() -> None:
    digest = digest_of_branches({3: 10, 4: 20})

    assert digest.hex() == "5f23b87f8d6f9e265bbb0eb8f01f3375"
    assert digest == digest_of_branches({4: 20, 3: 10})
    assert digest != digest_of_branches({3: 20, 4: 10})
    assert digest != digest_of_branches({3: 10})


def test_which_states_are_outcomes() -> None:
    assert [state.name for state in TransactionState if state.is_final] == ["COMMITTED", "ABORTED", "EXPIRED"]
