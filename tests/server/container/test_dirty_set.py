from millrace.server.container.dirty_set import DirtySet


def test_what_was_taken_is_forgotten_when_it_is_stored() -> None:
    unstored = DirtySet[int]()
    unstored.add(1)

    assert unstored.take() == [1]
    assert unstored.stored() == [1]
    assert unstored.take() == []


def test_what_changes_meanwhile_is_kept_for_the_next() -> None:
    unstored = DirtySet[int]()
    for key in (1, 2):
        unstored.add(key)
    unstored.take()
    for key in (2, 3):
        unstored.add(key)

    assert unstored.stored() == [1]
    assert sorted(unstored.take()) == [2, 3]


def test_what_was_not_stored_is_taken_again() -> None:
    unstored = DirtySet[int]()
    unstored.add(1)
    unstored.take()  # and the checkpoint fails
    unstored.add(2)

    assert sorted(unstored.take()) == [1, 2]
    assert sorted(unstored.stored()) == [1, 2]
