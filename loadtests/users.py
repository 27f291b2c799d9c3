"""The users of a load test, for locust: producers, tail readers, catch-up readers.

`python -m loadtests` runs this file in a locust of its own; `locust -f loadtests/users.py --address HOST:PORT` shows
the same in locust's web page. Locust patches sockets and time for the whole process: nothing else imports this module.

When the time is over, producers wait for their last acks, and tail readers until they have seen every acknowledged
event: a user's task is its whole life, and locust's stop time-out is the bound of both.
"""

import contextlib
import itertools
import json
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gevent
import numpy as np
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from locust import User, events, task
from locust.env import Environment
from locust.exception import StopUser

# By their full names: locust loads this file by its path, outside of any package.
from loadtests.accounts import Accounts
from loadtests.protocol import ProtocolClient, UnexpectedFrameError
from loadtests.records import RecordStream
from loadtests.workload import EventSource, Scenario, Schedule, SequenceChecker
from millrace.model.block_packing import pack_block
from millrace.wire import messages as m
from millrace.wire.credit import ReceiveWindow

SCENARIOS: Final = Path(__file__).parent / "scenarios"
_WINDOW_BYTES: Final = 4 << 20
_SETTLE_TIMEOUT_S: Final = 20.0
_PROGRESS_S: Final = 0.5
# Never slept longer than this, so that the end of the test is noticed.
_SLEEP_S_MAX: Final = 0.1
_SOCKET_TIMEOUT_S: Final = 30.0


class Run:
    """What the users of this process share."""

    def __init__(self, environment: Environment, options: Namespace) -> None:
        self.environment = environment
        self.address: str = options.address
        path = Path(options.scenario)
        scenario = Scenario.load(path if path.suffix else SCENARIOS / f"{path}.toml")
        self.scenario = scenario.changed(json.loads(options.changes))
        self.result_path = Path(options.result) if options.result else None
        self.accounts = Accounts(self.scenario)
        self.segments: list[int] = []
        self.producer_numbers = itertools.count()
        self.reader_numbers = itertools.count()
        self.stopping = Event()
        self.producers_done = Event()
        self._producers_left = self.scenario.producers.users
        self.finished: set[str] = set()
        if not self._producers_left:
            self.producers_done.set()

    def create_segments(self) -> None:
        """Make the segments of this run; their names are new, so that runs against one server do not meet."""
        prefix = f"load/{self.scenario.name}-{uuid.uuid4().hex[:12]}"
        with self.accounted("segments"), ProtocolClient(self.address) as client:
            self.segments = [client.create_segment(f"{prefix}-{index}") for index in range(self.scenario.segments)]

    def producer_done(self) -> None:
        """Say that a producer has all its acks."""
        self._producers_left -= 1
        if self._producers_left == 0:
            self.producers_done.set()

    @contextlib.contextmanager
    def accounted(self, who: str) -> Iterator[None]:
        """Turn whatever ends a user into an error of the load test."""
        try:
            yield
        except Exception as error:
            self.accounts.error(f"{who}: {error!r}")
            self.environment.events.request.fire(
                request_type="user",
                name=type(error).__name__,
                response_time=0,
                response_length=0,
                exception=error,
                context={},
            )
            raise StopUser from error
        self.finished.add(who)

    def finish(self) -> None:
        """Close the books."""
        accounts = self.accounts
        # One more than there are users: the segments.
        if (unfinished := self.scenario.users + 1 - len(self.finished)) and not accounts.error_count:
            accounts.error(f"{unfinished} users did not finish")
        if not accounts.appended_events:
            accounts.error("nothing was appended")
        result = accounts.result()
        if self.result_path is not None:
            self.result_path.write_text(json.dumps(result.as_json(), indent=2), encoding="utf-8")
        self.environment.process_exit_code = 0 if result.passed else 1

    def show_progress(self) -> None:
        """Print a line of JSON now and then, for `python -m loadtests`."""
        accounts = self.accounts
        while not self.producers_done.is_set():
            progress = {
                "elapsed_s": accounts.elapsed_s,
                "appended": accounts.appended_events,
                "tailed": accounts.tail_events,
                "read_bytes": accounts.read_bytes,
                "errors": accounts.error_count,
            }
            print(json.dumps({"progress": progress}), flush=True)
            gevent.sleep(_PROGRESS_S)


class LoadUser(User):
    """A user of the run of this process."""

    abstract = True
    run_state: Run

    def fire(self, kind: str, name: str, *, latency_s: float, size: int) -> None:
        """Tell locust of a request, for its statistics and its HTML report."""
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=latency_s * 1000,
            response_length=size,
            exception=None,
            context={},
        )


class Producer(LoadUser):
    """Writes events when they are due and measures, for each, how long after that it was durable."""

    @task
    def live(self) -> None:
        """Connect, write until the test is over, wait for the last acks."""
        run = self.run_state
        number = next(run.producer_numbers)
        with run.accounted(f"producer {number}"):
            try:
                with ProtocolClient(run.address, timeout_s=_SOCKET_TIMEOUT_S) as client:
                    self._write(client, number)
            finally:
                run.producer_done()
        raise StopUser

    def _write(self, client: ProtocolClient, number: int) -> None:
        run = self.run_state
        options = run.scenario.producers
        source = EventSource(number, options)
        schedule = Schedule(options.rate_per_s / options.events_per_append, options.burst_s, options.pause_s)
        room = BoundedSemaphore(options.outstanding)
        acks = gevent.spawn(self._take_acks, client, number, room)
        # Users start within a moment; evenly spread they do not all send in the same one.
        begin_ns = time.monotonic_ns() + int(1e9 * schedule.due_s(1) * number / max(1, options.users))
        for index in itertools.count():
            due_ns = begin_ns + int(schedule.due_s(index) * 1e9)
            if not self._sleep_until(due_ns, acks) or not self._wait_for_room(room, acks):
                break
            if not options.rate_per_s:
                due_ns = time.monotonic_ns()
            key, values = source.next_append(due_ns)
            payload = values[0] if len(values) == 1 else pack_block(values)
            segment_id = run.segments[run.scenario.segment_of(number, key)]
            client.send_append(segment_id, payload, (key, source.written[key], due_ns), event_count=len(values))
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while client.in_flight_count and not acks.ready():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{client.in_flight_count} appends without an ack after {_SETTLE_TIMEOUT_S:g} s")
            gevent.sleep(0.01)
        if acks.ready():
            acks.get()
        acks.kill()

    def _sleep_until(self, due_ns: int, acks: gevent.Greenlet) -> bool:
        """Sleep; return whether to continue."""
        stopping = self.run_state.stopping
        while not stopping.is_set() and not acks.ready():
            left_s = (due_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                return True
            gevent.sleep(min(left_s, _SLEEP_S_MAX))
        return False

    def _wait_for_room(self, room: BoundedSemaphore, acks: gevent.Greenlet) -> bool:
        """Take one of the outstanding appends; return whether to continue."""
        while not room.acquire(timeout=_SLEEP_S_MAX):
            if self.run_state.stopping.is_set() or acks.ready():
                return False
        return True

    def _take_acks(self, client: ProtocolClient, number: int, room: BoundedSemaphore) -> None:
        accounts = self.run_state.accounts
        options = self.run_state.scenario.producers
        events_count, size = options.events_per_append, options.events_per_append * options.event_size
        while True:
            acked = client.receive_acks()
            now_ns = time.monotonic_ns()
            for (key, sequence, due_ns), _ in acked.appends:
                latency_s = (now_ns - due_ns) / 1e9
                accounts.acked(number, key, sequence=sequence, events=events_count, size=size, latency_s=latency_s)
                self.fire("append", f"{events_count} x {options.event_size} B", latency_s=latency_s, size=size)
                room.release()


class TailReader(LoadUser):
    """Follows every segment from its head and measures how long after they were due events arrive."""

    @task
    def live(self) -> None:
        """Subscribe, check, and at the end wait for what was acknowledged."""
        run = self.run_state
        number = next(run.reader_numbers)
        with run.accounted(f"tail reader {number}"):
            checker = SequenceChecker()
            with ProtocolClient(run.address, timeout_s=_SOCKET_TIMEOUT_S) as client:
                reading = gevent.spawn(self._read, client, checker, f"tail reader {number}")
                while not run.producers_done.wait(_SLEEP_S_MAX) and not reading.ready():
                    pass
                deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
                while run.accounts.missing(checker.last) and not reading.ready() and time.monotonic() < deadline_s:
                    gevent.sleep(0.02)
                if reading.ready():
                    reading.get()
                reading.kill()
            run.accounts.close_reader(checker.last, where=f"tail reader {number}")
        raise StopUser

    def _read(self, client: ProtocolClient, checker: SequenceChecker, who: str) -> None:
        run = self.run_state
        producers = run.scenario.producers
        blocks = producers.events_per_append > 1
        for segment_id in run.segments:
            window = ReceiveWindow(start=0, size_bytes=_WINDOW_BYTES)
            client.subscribe(
                m.Subscribe(segment_id=segment_id, offset=0, credit_bytes=window.subscribe(0)),
                (RecordStream(event_size=producers.event_size, blocks=blocks), window),
            )
        while True:
            pushed = client.receive_data()
            now_ns = time.monotonic_ns()
            stream, window = pushed.subject
            piece = pushed.piece
            heads = stream.feed(piece.data)
            run.accounts.violations(checker.check(heads), where=who)
            if len(heads):
                latencies_s = (now_ns - heads["due_ns"]) / 1e9
                run.accounts.tail.record_all(latencies_s)
                run.accounts.tail_events += len(heads)
                self.fire("tail", "push", latency_s=float(np.mean(latencies_s)), size=len(piece.data))
            if credit_bytes := window.consume(piece.offset + len(piece.data)):
                client.grant(pushed.request_id, credit_bytes)


class CatchUpReader(LoadUser):
    """Reads segments from head to tail, one after another, as fast as it can."""

    @task
    def live(self) -> None:
        """Read until the test is over."""
        run = self.run_state
        number = next(run.reader_numbers)
        with run.accounted(f"catch-up reader {number}"):
            with ProtocolClient(run.address, timeout_s=_SOCKET_TIMEOUT_S) as client:
                segments = itertools.cycle(run.segments[number % len(run.segments) :] + run.segments)
                while not run.stopping.is_set():
                    self._read_segment(client, next(segments), f"catch-up reader {number}")
        raise StopUser

    def _read_segment(self, client: ProtocolClient, segment_id: int, who: str) -> None:
        run = self.run_state
        producers = run.scenario.producers
        stream = RecordStream(event_size=producers.event_size, blocks=producers.events_per_append > 1)
        checker = SequenceChecker()
        offset, at_tail = 0, False
        while not at_tail and not run.stopping.is_set():
            begin_s = time.monotonic()
            request = m.Read(
                segment_id=segment_id, offset=offset, size_max=run.scenario.catch_up_readers.read_size, wait_ms=100
            )
            client.send(request)
            piece = client.receive_data().piece
            if piece.offset != offset:
                raise UnexpectedFrameError(f"data from {piece.offset} on for a read at {offset}")
            latency_s = time.monotonic() - begin_s
            size = len(piece.data)
            heads = stream.feed(piece.data)
            run.accounts.violations(checker.check(heads), where=who)
            run.accounts.read_events += len(heads)
            run.accounts.read_bytes += size
            at_tail = bool(piece.flags & m.DataFlag.AT_TAIL)
            if not at_tail:
                # At the tail a read waits for bytes: its time says nothing.
                run.accounts.read.record(latency_s)
                self.fire("read", "catch-up", latency_s=latency_s, size=size)
            offset += size
            pace = run.scenario.catch_up_readers.bytes_per_s
            if pace:
                gevent.sleep(max(0.0, begin_s + size / pace - time.monotonic()))


@events.init_command_line_parser.add_listener
def add_arguments(parser: Any) -> None:
    """Add the options of a run; each can be set in the environment instead."""
    group = parser.add_argument_group("Millrace")
    group.add_argument("--address", env_var="LOAD_ADDRESS", default="127.0.0.1:9240", help="HOST:PORT of the server")
    group.add_argument("--scenario", env_var="LOAD_SCENARIO", default="steady", help="a name, or a TOML file")
    group.add_argument(
        "--changes", env_var="LOAD_CHANGES", default="{}", help='fields to change: {"producers.rate_per_s": 10}'
    )
    group.add_argument("--result", env_var="LOAD_RESULT", default="", help="where to write the result as JSON")


@events.init.add_listener
def prepare(environment: Environment, **_: Any) -> None:
    """Read the scenario and say how many users of each kind there are."""
    assert environment.parsed_options is not None
    LoadUser.run_state = run = Run(environment, environment.parsed_options)
    scenario = run.scenario
    counts = {
        Producer: scenario.producers.users,
        TailReader: scenario.tail_readers.users,
        CatchUpReader: scenario.catch_up_readers.users,
    }
    for kind, count in counts.items():
        kind.fixed_count = count
    environment.user_classes = [kind for kind, count in counts.items() if count]
    # The time of the test is counted from what the loop holds for now: as it was before all this was loaded.
    gevent.get_hub().loop.update_now()


@events.test_start.add_listener
def begin(environment: Environment, **_: Any) -> None:
    """Make the segments."""
    run = LoadUser.run_state
    run.create_segments()
    run.accounts.begin()
    if run.result_path is not None:
        gevent.spawn(run.show_progress)


@events.test_stopping.add_listener
def stop(environment: Environment, **_: Any) -> None:
    """Let users finish."""
    run = LoadUser.run_state
    run.accounts.end()
    run.stopping.set()


@events.test_stop.add_listener
def finish(environment: Environment, **_: Any) -> None:
    """Close the books."""
    LoadUser.run_state.finish()
    sys.stdout.flush()
