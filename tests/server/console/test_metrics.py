"""All metrics of a real server: their names, units and helps, and what they say of it."""

import asyncio
import platform
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric

from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.console import metrics
from millrace.server.console.metric_table import STATISTICS
from millrace.server.host.metrics import Metrics
from millrace.server.options import ServerOptions
from millrace.server.settings import declared
from tests.support.object_store import MemoryObjectStore
from tests.support.scrapes import scrape, value_of
from tests.support.servers import SMALL_WAL
from tests.support.sites import Site
from tests.support.tables import table

UNITS = ("seconds", "bytes", "ratio", "info")
NOT_UNITS = ("s", "ms", "us", "milliseconds", "microseconds", "kb", "mb", "kib", "mib", "percent", "minutes", "hours")


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    """What a server that has just started says."""

    async def scraped() -> dict[str, Metric]:
        folder = tmp_path_factory.mktemp("server")
        console, listen = Address("127.0.0.1", 0), Address("127.0.0.1", 0)
        async with Server(ServerOptions(data_folder=folder, listen=listen, console=console)) as server:
            return await asyncio.to_thread(scrape, server.console_address)

    return asyncio.run(scraped())


def test_names_are_as_prometheus_wants_them(families: dict[str, Metric]) -> None:
    assert len(families) > 80
    for name, family in families.items():
        words = name.split("_")
        assert re.fullmatch(r"(millrace|process)(_[a-z0-9]+)+", name), name
        assert not set(words) & set(NOT_UNITS), name
        assert (words[-1] == "total") == (family.type == "counter"), name
        assert words[-1] not in ("count", "sum", "bucket"), name
        units = [word for word in words if word in UNITS]
        assert units == [word for word in words[-2:] if word in UNITS], f"the unit of {name} comes last"
        assert family.type != "histogram" or units, name


def test_every_help_says_something(families: dict[str, Metric]) -> None:
    ours = {name: family.documentation for name, family in families.items() if name.startswith("millrace_")}

    for name, text in ours.items():
        assert text[:1].isupper() or text[:1].isdigit(), name
        assert text.endswith("."), name
        # More than the words of the name once more.
        assert len({*re.findall("[a-z]+", text.lower())} - {*name.split("_")}) >= 3, f"{name}: {text}"
    assert len(set(ours.values())) == len(ours)


@table("setting", sorted({*re.findall(r"MILLRACE_\w+", str([*STATISTICS.values()]))}))
def test_a_help_names_settings_that_exist(setting: str) -> None:
    assert setting in {each.variable for each in declared().values()}


@pytest.mark.asyncio
async def test_every_number_of_the_statistics_is_declared(tmp_path: Path) -> None:
    """Of a server whose log is in files, and of one whose log is in the object store."""
    numbers = set()
    local, remote = Site(tmp_path / "local", MemoryObjectStore()), remote_site(tmp_path / "remote")
    for site in (local, remote):
        await site.start()
        numbers |= {
            (part, item.name)
            for part, record in site.server.statistics().items()
            for item in fields(record)
            if isinstance(getattr(record, item.name), bool | int | float)
        }
        await site.stop()

    assert numbers == set(STATISTICS)


@pytest.mark.asyncio
async def test_a_log_in_the_store_has_metrics_of_its_own(tmp_path: Path) -> None:
    site = remote_site(tmp_path)
    await site.start()
    await site.stored(b"acknowledged")
    registry = metrics.registry_of(Metrics(), statistics=site.server.statistics, health=site.server.health)
    names = {family.name for family in registry.collect()}
    await site.stop()

    assert {"millrace_wal_objects", "millrace_wal_puts_in_flight", "millrace_wal_fullness_ratio"} <= names
    assert "millrace_wal_full_files" not in names


def remote_site(folder: Path) -> Site:
    return Site(folder, MemoryObjectStore(), wal=replace(SMALL_WAL, place="object"))


def test_it_says_what_runs(families: dict[str, Metric]) -> None:
    (sample,) = families["millrace_build_info"].samples

    assert sample.value == 1
    assert sample.labels["python"] == platform.python_version()
    assert sample.labels["version"]
    assert sample.labels["platform"] == platform.platform()
    assert sample.labels.keys() == {"version", "python", "implementation", "uvloop", "platform"}


@pytest.mark.skipif(platform.system() != "Linux", reason="the library reads /proc")
def test_it_says_what_the_process_takes(families: dict[str, Metric]) -> None:
    assert value_of(families, "process_resident_memory_bytes") > 1 << 20
    assert value_of(families, "process_open_fds") >= 3


def test_health_is_a_metric_too() -> None:
    problems = iter(["the disk has not answered for 3.1 s", ""])
    health = _values(metrics.registry_of(Metrics(), statistics=dict, health=lambda: next(problems)))

    assert (next(health), next(health)) == (0, 1)


def test_a_part_that_is_not_there_has_no_metrics() -> None:
    registry = metrics.registry_of(Metrics(), statistics=dict, health=str)

    names = {family.name for family in registry.collect()}

    assert "millrace_healthy" in names
    assert not any(name.startswith("millrace_front") for name in names)


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    counted = Metrics()
    for value in (0.00005, 0.0001, 0.00015, 7.0):
        counted.wal_sync_seconds.series().observe(value)
    registry = metrics.registry_of(counted, statistics=dict, health=str)

    name = counted.wal_sync_seconds.name
    counts = [
        registry.get_sample_value(f"{name}_bucket", {"le": bound}) for bound in ("0.0001", "0.0002", "5.0", "+Inf")
    ]
    assert counts == [2, 3, 3, 4]
    assert registry.get_sample_value(f"{name}_count") == 4
    assert registry.get_sample_value(f"{name}_sum") == pytest.approx(7.0003)


def test_what_has_a_label_is_told_for_each_value_of_it() -> None:
    counted = Metrics()
    registry = metrics.registry_of(counted, statistics=dict, health=str)
    counted.task_failures_total.increase("flusher")
    counted.request_seconds.series("READ").observe(0.5)

    assert registry.get_sample_value("millrace_task_failures_total", {"task": "flusher"}) == 1
    assert registry.get_sample_value("millrace_request_seconds_count", {"type": "READ"}) == 1
    assert registry.get_sample_value("millrace_wal_waits_total") == 0


def _values(registry: CollectorRegistry) -> Iterator[float | None]:
    while True:
        yield registry.get_sample_value("millrace_healthy")
