"""What Prometheus would read from a server."""

import urllib.request

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from .waiting import PATIENCE_S


def scrape(console_address: str) -> dict[str, Metric]:
    """Return the metrics of a server by the names under which Prometheus knows them; blocks."""
    with urllib.request.urlopen(f"http://{console_address}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    families: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        families[f"{family.name}_total" if family.type == "counter" else family.name] = family
    return families


def value_of(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Return the value of the one sample with these labels, among others."""
    (value,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return value
