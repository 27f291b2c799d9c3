import pytest

from millrace.client.errors import InvalidArgumentError
from millrace.client.streams import ScalingPolicy, StreamConfig


def test_a_configuration_is_read_back_from_its_text() -> None:
    configuration = StreamConfig(scaling=ScalingPolicy.fixed(7))

    assert StreamConfig.from_json(configuration.to_json()) == configuration


@pytest.mark.parametrize("text", ["", "5", "{}", '{"scaling": {"kind": "fixed"}}', '{"scaling": 5}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        StreamConfig.from_json(text)


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_the_number_of_segments_is_bounded(count: int) -> None:
    with pytest.raises(InvalidArgumentError):
        ScalingPolicy.fixed(count)
