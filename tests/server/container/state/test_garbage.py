"""When a chunk may be deleted: never while a restart could still need it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.server.container.state.garbage import DeleteAfter, GarbageQueue
from tests.server.container.states import waiting
from tests.support.examples import examples


def taken(queue: GarbageQueue) -> list[str]:
    names = []
    while (name := queue.take()) is not None:
        names.append(name)
    return names


def test_what_no_checkpoint_knew_goes_at_once() -> None:
    queue = GarbageQueue()
    queue.add(["a"], delete_after=DeleteAfter.NOW)
    assert (queue.waits_for_checkpoint, queue.waits_for_copy) == (False, False)
    assert taken(queue) == ["a"]
    assert queue.take() is None


def test_what_the_log_gave_up_waits_for_a_checkpoint_that_began_after_it() -> None:
    queue = GarbageQueue()
    running = queue.checkpoint_begun()
    queue.add(["a"], delete_after=DeleteAfter.CHECKPOINT)
    queue.checkpoint_stored(running)
    assert (taken(queue), queue.waits_for_checkpoint) == ([], True)
    queue.checkpoint_stored(queue.checkpoint_begun())
    assert (taken(queue), queue.waits_for_checkpoint) == (["a"], False)


def test_what_was_written_again_waits_for_a_copy_of_such_a_checkpoint() -> None:
    queue = GarbageQueue()
    before = queue.checkpoint_begun()
    queue.checkpoint_stored(before)
    queue.add(["a"], delete_after=DeleteAfter.COPY)
    queue.copy_published(before)
    assert (taken(queue), queue.waits_for_checkpoint, queue.waits_for_copy) == ([], True, False)
    after = queue.checkpoint_begun()
    queue.checkpoint_stored(after)
    assert (taken(queue), queue.waits_for_checkpoint, queue.waits_for_copy) == ([], False, True)
    queue.copy_published(after)
    assert (taken(queue), queue.waits_for_copy) == (["a"], False)


def test_where_another_server_may_take_over_what_the_log_gave_up_waits_for_a_copy_too() -> None:
    """Behaviour 90: it would start from the copy alone."""
    queue = GarbageQueue(is_shared=True)
    queue.add(["a"], delete_after=DeleteAfter.CHECKPOINT)
    queue.checkpoint_stored(queue.checkpoint_begun())
    assert (taken(queue), queue.waits_for_checkpoint, queue.waits_for_copy) == ([], False, True)
    queue.copy_published(1)
    assert taken(queue) == ["a"]


def test_where_another_server_may_take_over_what_was_written_again_waits_for_two_copies() -> None:
    """Behaviour 101: a start that finds the newest copy damaged uses the one before, which refers to the chunk."""
    queue = GarbageQueue(is_shared=True)
    queue.add(["a"], delete_after=DeleteAfter.COPY)
    queue.checkpoint_stored(queue.checkpoint_begun())
    assert (taken(queue), queue.waits_for_copy) == ([], True)
    queue.copy_published(1)
    assert (taken(queue), queue.waits_for_copy) == ([], False)
    queue.copy_published(1)
    assert taken(queue) == ["a"]


def test_what_could_not_be_deleted_is_tried_again() -> None:
    queue = GarbageQueue()
    queue.add(["a", "b"], delete_after=DeleteAfter.NOW)
    name = queue.take()
    assert name == "a"
    queue.put_back(name)
    assert sorted(taken(queue)) == ["a", "b"]


class Deletions(RuleBasedStateMachine):
    """Checkpoints and copies that succeed or fail in any order: what was deleted is in none of those in use."""

    is_shared = False

    def __init__(self) -> None:
        super().__init__()
        self.queue = GarbageQueue(is_shared=self.is_shared)
        self.count = 0
        # Chunks that the state refers to, and those of the checkpoint under way, the stored one, and the copies.
        self.live: set[str] = set()
        self.log_gave_up: set[str] = set()
        self.running: tuple[int, set[str]] | None = None
        self.stored: tuple[int, set[str]] = (0, set())
        self.exported: tuple[int, set[str]] | None = None
        self.copied: set[str] = set()
        self.copied_before: set[str] = set()
        self.deleted: set[str] = set()

    @rule(fence=st.sampled_from(DeleteAfter), is_older=st.booleans())
    def give_up(self, fence: DeleteAfter, is_older: bool) -> None:
        if fence is not DeleteAfter.NOW and is_older and self.live:
            name = min(self.live)
            self.live.remove(name)
        else:
            self.count += 1
            name = f"{self.count:06d}"
        if fence is DeleteAfter.CHECKPOINT:
            self.log_gave_up.add(name)
        self.queue.add([name], delete_after=fence)

    @rule()
    def publish(self) -> None:
        self.count += 1
        self.live.add(f"{self.count:06d}")

    @precondition(lambda self: self.running is None)
    @rule()
    def begin(self) -> None:
        self.running = self.queue.checkpoint_begun(), set(self.live)

    @precondition(lambda self: self.running is not None)
    @rule(succeeds=st.booleans())
    def end(self, succeeds: bool) -> None:
        assert self.running is not None
        if succeeds:
            self.queue.checkpoint_stored(self.running[0])
            self.stored = self.running
        self.running = None

    @precondition(lambda self: self.exported is None and self.stored[0])
    @rule()
    def export(self) -> None:
        self.exported = self.stored

    @precondition(lambda self: self.exported is not None)
    @rule(succeeds=st.booleans())
    def copy(self, succeeds: bool) -> None:
        assert self.exported is not None
        if succeeds:
            self.queue.copy_published(self.exported[0])
            self.copied_before, self.copied = self.copied, self.exported[1]
        self.exported = None

    @rule(fails=st.booleans())
    def delete(self, fails: bool) -> None:
        name = self.queue.take()
        if name is not None and fails:
            self.queue.put_back(name)
        elif name is not None:
            self.deleted.add(name)

    @invariant()
    def nothing_in_use_is_deleted(self) -> None:
        assert not self.deleted & (self.live | self.stored[1])
        # Who takes over has no log to give it up again.
        assert not self.deleted & (self.copied if self.is_shared else self.copied - self.log_gave_up)
        # Who has to use the copy before the newest asks for nothing that a record gave up.
        assert not (self.is_shared and self.deleted & (self.copied_before - self.log_gave_up))

    def teardown(self) -> None:
        if self.running is not None:
            self.end(False)
        self.begin()
        self.end(True)
        for _ in range(2):
            self.queue.copy_published(self.stored[0])
        taken(self.queue)
        assert not any(waiting(self.queue, each) for each in DeleteAfter)


class SharedDeletions(Deletions):
    """The same where another server may take over: behaviour 90."""

    is_shared = True


SharedDeletions.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestSharedDeletions = SharedDeletions.TestCase
Deletions.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestDeletions = Deletions.TestCase
