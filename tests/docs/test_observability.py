"""The dashboard and the alerts ask for what a server has, and each alert has a section that says what to do."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import Metric

import millrace
from millrace.model.address import Address
from millrace.server.app import Server
from tests.support.scrapes import scrape
from tests.support.servers import server_options
from tests.support.tables import table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((ROOT / "observability" / "grafana-dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "observability" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes; and `up` is its own metric."""


def targets() -> Iterator[tuple[str, str, str]]:
    """Yield the title, expression and legend of what each panel shows, with Grafana's variables filled in."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$instance", "a|b")
            yield panel["title"], expression, target["legendFormat"]


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Yield what an expression selects, wherever it is in it."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql_parser.AggregateExpr | promql_parser.ParenExpr | promql_parser.UnaryExpr):
        yield from selectors(node.expr)
    else:
        assert isinstance(node, promql_parser.NumberLiteral | promql_parser.StringLiteral), node


def grouped_by(expression: str) -> set[str]:
    return {label for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r"\s*,\s*", found)}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each sample of a server that was used, by its name."""

    async def scraped() -> dict[str, Metric]:
        options = server_options(tmp_path_factory.mktemp("server"), console=Address("127.0.0.1", 0))
        async with Server(options) as server:
            async with millrace.connect(server.address) as client:
                await client.create_stream("shop/orders", cursors=["billing"])
                async with client.writer("shop/orders") as writer:
                    await writer.write(b"x")
            return await asyncio.to_thread(scrape, server.console_address)

    found: dict[str, set[str]] = {"up": set()}
    for family in asyncio.run(scraped()).values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def check(expression: str, samples: dict[str, set[str]]) -> set[str]:
    """Return the labels that an expression may use; fail if it selects what no server has."""
    chosen = list(selectors(promql_parser.parse(expression)))
    assert chosen
    known: set[str] = set(OF_PROMETHEUS)
    for selector in chosen:
        assert selector.name in samples, f"there is no {selector.name}"
        labels = samples[selector.name] | OF_PROMETHEUS
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels, expression
        known |= labels
    assert grouped_by(expression) <= known, expression
    return known


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_what_there_is(alert: dict[str, Any], samples: dict[str, set[str]]) -> None:
    labels = check(alert["expr"], samples)

    assert set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"]))) <= labels
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch(r"\d+[smh]", alert.get("for", "0s"))
    assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}


@table("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_section_that_says_what_to_do(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    (section,) = re.findall(rf"^### {name}\n\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)

    assert len(section.split()) > 15
    # It is in the repository, and in the site that `make docs` builds: there is no address that could be wrong.
    assert alert["annotations"]["runbook"] == f"docs/observability.md#{name.lower()}"
    assert "://" not in str(alert)


def test_every_section_is_of_an_alert() -> None:
    named = re.findall(r"^### (Millrace\w+)$", PAGE, re.MULTILINE)

    assert named == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize(("title", "expression", "legend"), list(targets()))
def test_a_panel_asks_for_what_there_is(title: str, expression: str, legend: str, samples: dict[str, set[str]]) -> None:
    labels = check(expression, samples)

    shown = set(re.findall(r"{{(\w+)}}", legend))
    assert shown <= (grouped_by(expression) or labels)


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "instance"}
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or (panel["targets"] and panel["description"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


@pytest.mark.parametrize("expression", ["rate(millrace_nothing_total[5m])", 'millrace_healthy{color="red"} == 0'])
def test_what_there_is_not_is_found_out(expression: str, samples: dict[str, set[str]]) -> None:
    with pytest.raises(AssertionError):
        check(expression, samples)


def test_the_examples_of_the_page_can_be_read() -> None:
    pages = {kind: re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for kind in ("yaml", "json")}
    scrape_config, rules = map(yaml.safe_load, pages["yaml"])
    (line,) = map(json.loads, pages["json"])

    assert {job["job_name"] for job in scrape_config["scrape_configs"]} == set(
        re.findall(r'job="(\w+)"', " ".join(alert["expr"] for alert in ALERTS))
    )
    assert [(ROOT / "observability" / name).is_file() for name in rules["rule_files"]] == [True]
    assert line["event"] == "stream scaled"
