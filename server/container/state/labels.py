"""Labels of streams: what their configurations ask for, by which the checkpoint finds them as it does by name."""

import logging
from typing import Final

from millrace.model.errors import InvalidArgumentError
from millrace.model.policy import ScalingKind, StreamConfig

logger = logging.getLogger(__name__)

LABEL_SCALES: Final = "scales"
LABEL_RETAINS: Final = "retains"
LABEL_TIMES: Final = "times"


def config_of(configuration: str) -> StreamConfig:
    """Return the configuration of a stream that exists; one that cannot be read (any more) asks for nothing."""
    try:
        return StreamConfig.from_json(configuration)
    except InvalidArgumentError as error:
        logger.warning("configuration of a stream ignored reason=%s", error)
        return StreamConfig()


def tag_label(tag: str) -> str:
    """Return the label of the streams with a tag."""
    return f"tag:{tag}"


def labels_of(configuration: str) -> list[str]:
    """Return the labels of the streams with this configuration."""
    config = config_of(configuration)
    labels = [tag_label(tag) for tag in config.tags]
    if config.scaling.kind is not ScalingKind.FIXED:
        labels.append(LABEL_SCALES)
    if config.retention is not None:
        labels.append(LABEL_RETAINS)
    if config.event_times is not None:
        labels.append(LABEL_TIMES)
    return labels
