import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.errors import InvalidArgumentError
from millrace.model.policy import RetentionPolicy, ScalingKind, ScalingPolicy, StreamConfig
from tests.support.tables import table


@table(
    "text",
    [
        "",
        "{}",
        "null",
        '{"scaling":{"kind":"fixed","segment_count":1},"retention":null}',
        '{"scaling":null,"tags":null,"owner":"somebody"}',
        '{"scaling":{"kind":"fixed","target_per_s":"whatever"}}',
    ],
)
def test_what_is_left_out_or_unknown_changes_nothing(text: str) -> None:
    assert StreamConfig.from_json(text) == StreamConfig()


def test_a_full_configuration() -> None:
    text = json.dumps(
        {
            "scaling": {"kind": "bytes", "target_per_s": 1e6, "factor": 4, "min_segments": 2, "segment_count": 2},
            "retention": {"kind": "consumption", "min_bytes": 10, "max_bytes": 99.0, "min_age_s": 1.5, "max_age_s": 7},
            "tags": ["winter", "überall", "winter"],
        }
    )

    assert StreamConfig.from_json(text) == StreamConfig(
        scaling=ScalingPolicy.by_bytes_per_s(1_000_000, factor=4, min_segments=2),
        retention=RetentionPolicy.by_consumption(min_bytes=10, max_bytes=99, min_age_s=1.5, max_age_s=7.0),
        tags=("winter", "überall"),
    )


@table(
    ("retention", "max_bytes", "max_age_s"),
    [
        ({"kind": "size", "min_bytes": 50}, 50, None),
        ({"kind": "size", "max_bytes": 50}, 50, None),
        ({"kind": "time", "min_age_s": 50}, None, 50.0),
        ({"kind": "time", "max_age_s": 50, "max_bytes": 7}, 7, 50.0),
        ({"kind": "consumption"}, None, None),
    ],
)
def test_one_bound_alone_means_just_that(
    retention: dict[str, object], max_bytes: int | None, max_age_s: float | None
) -> None:
    parsed = StreamConfig.from_json(json.dumps({"retention": retention})).retention
    assert parsed is not None
    assert (parsed.max_bytes, parsed.max_age_s) == (max_bytes, max_age_s)


@table(
    ("text", "named"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the configuration must be an object"),
        ('{"scaling": 5}', "scaling must be an object"),
        ('{"scaling": {"kind": "fast"}}', "scaling.kind must be one of fixed, bytes, events, not 'fast'"),
        ('{"scaling": {"kind": []}}', "scaling.kind must be one of"),
        ('{"scaling": {"kind": "events"}}', "scaling.target_per_s must be above 0"),
        ('{"scaling": {"kind": "events", "target_per_s": -1}}', "scaling.target_per_s must be a number"),
        ('{"scaling": {"kind": "events", "target_per_s": NaN}}', "scaling.target_per_s must be a number"),
        ('{"scaling": {"kind": "events", "target_per_s": Infinity}}', "scaling.target_per_s must be a number"),
        ('{"scaling": {"kind": "events", "target_per_s": 5, "factor": 1}}', "scaling.factor=1 must be between 2"),
        ('{"scaling": {"kind": "events", "target_per_s": 5, "factor": true}}', "scaling.factor must be a whole"),
        ('{"scaling": {"min_segments": 0}}', "scaling.min_segments=0"),
        ('{"scaling": {"min_segments": 4097}}', "scaling.min_segments=4097"),
        ('{"scaling": {"min_segments": Infinity}}', "scaling.min_segments must be a whole number"),
        ('{"retention": {"kind": "size"}}', "by size needs"),
        ('{"retention": {"kind": "time"}}', "by time needs"),
        ('{"retention": {}}', "retention.kind must be one of size, time, consumption"),
        ('{"retention": {"kind": "size", "max_bytes": 1.5}}', "retention.max_bytes must be a whole number"),
        ('{"retention": {"kind": "size", "max_bytes": 5, "min_bytes": 6}}', "max_bytes=5 is below min_bytes=6"),
        ('{"retention": {"kind": "time", "max_age_s": 5, "min_age_s": 6}}', "is below min_age_s"),
        ('{"tags": "winter"}', "tags must be a list"),
        ('{"tags": ["a\\nb"]}', "a tag must be"),
        ('{"tags": [""]}', "a tag must be"),
    ],
)
def test_a_wrong_value_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        StreamConfig.from_json(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
objects = st.fixed_dictionaries(
    {},
    optional={
        name: values | st.sampled_from(["fixed", "bytes", "events", "size", "time", "consumption"])
        for name in ("kind", "target_per_s", "factor", "min_segments", "min_bytes", "max_bytes", "max_age_s", "min_age")
    },
)


@given(st.fixed_dictionaries({}, optional={"scaling": objects | values, "retention": objects | values, "tags": values}))
def test_any_json_is_read_or_refused(content: dict[str, object]) -> None:
    try:
        policy = StreamConfig.from_json(json.dumps(content))
    except InvalidArgumentError:
        return
    assert policy.scaling.kind is ScalingKind.FIXED or policy.scaling.target_per_s > 0


@table(
    "configuration",
    [
        StreamConfig(scaling=ScalingPolicy.fixed(7)),
        StreamConfig(scaling=ScalingPolicy.by_bytes_per_s(1 << 20, factor=3, min_segments=2), tags=("b", "a", "b")),
        StreamConfig(
            scaling=ScalingPolicy.by_events_per_s(1000), retention=RetentionPolicy.by_size(max_bytes=9, min_bytes=1)
        ),
        StreamConfig(retention=RetentionPolicy.by_time(max_age_s=0.5)),
        StreamConfig(retention=RetentionPolicy.by_consumption(min_age_s=1.0, max_bytes=5)),
        StreamConfig(retention=RetentionPolicy.by_consumption()),
    ],
)
def test_a_configuration_is_read_back_from_its_text(configuration: StreamConfig) -> None:
    assert StreamConfig.from_json(configuration.to_json()) == configuration


def test_the_text_is_what_the_server_reads() -> None:
    assert StreamConfig().to_json() == '{"scaling":{"kind":"fixed","segment_count":1},"retention":null}'
    text = StreamConfig(
        scaling=ScalingPolicy.by_bytes_per_s(5), retention=RetentionPolicy.by_size(max_bytes=9), tags=("b", "a")
    ).to_json()
    assert json.loads(text) == {
        "scaling": {"kind": "bytes", "target_per_s": 5, "factor": 2, "min_segments": 1},
        "retention": {"kind": "size", "min_bytes": None, "max_bytes": 9, "min_age_s": None, "max_age_s": None},
        "tags": ["a", "b"],
    }


def test_policies_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: ScalingPolicy.by_bytes_per_s(0),
        lambda: ScalingPolicy.by_events_per_s(5, factor=1),
        lambda: ScalingPolicy("fixed", 1, 5),
        lambda: ScalingPolicy("guess", 1),
        lambda: RetentionPolicy.by_size(max_bytes=1, min_bytes=2),
        lambda: RetentionPolicy.by_size(max_bytes=-1),
        lambda: RetentionPolicy(kind="time"),
        lambda: RetentionPolicy(kind="mood"),
        lambda: StreamConfig(tags=("a\n",)),
        lambda: StreamConfig(tags="abc"),  # type: ignore[arg-type]  # wrong on purpose
    ):
        with pytest.raises(InvalidArgumentError):
            make()


@pytest.mark.parametrize("text", ["5", '{"scaling": 5}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        StreamConfig.from_json(text)


@table("count", [0, -1, 4097])
def test_the_number_of_segments_is_bounded(count: int) -> None:
    with pytest.raises(InvalidArgumentError):
        ScalingPolicy.fixed(count)


@table(
    "text",
    [
        "ScalingPolicy.fixed(3)",
        "ScalingPolicy.by_bytes_per_s(1000, factor=4, min_segments=2)",
        "ScalingPolicy.by_events_per_s(10, factor=2, min_segments=1)",
        "RetentionPolicy.by_size(max_bytes=10)",
        "RetentionPolicy.by_time(min_bytes=5, max_age_s=60.0)",
        "RetentionPolicy.by_consumption()",
    ],
)
def test_a_policy_shows_the_call_that_makes_it(text: str) -> None:
    policy = eval(text)
    assert repr(policy) == text
    assert text in repr(StreamConfig(**{"scaling" if isinstance(policy, ScalingPolicy) else "retention": policy}))


def test_a_configuration_takes_policies_only() -> None:
    with pytest.raises(InvalidArgumentError, match="scaling must be a ScalingPolicy, not 'fixed'"):
        StreamConfig(scaling="fixed")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="retention must be a RetentionPolicy or None, not 3"):
        StreamConfig(retention=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="1 to 4096 segments, not 'x'"):
        ScalingPolicy.fixed("x")  # type: ignore[arg-type]
