"""The files in `deploy/` and the page about them, as far as they can be checked without Docker and a cluster."""

import configparser
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final

import kubernetes_validate
import pytest
import typer
import yaml

from millrace.cli.main import make_app
from millrace.client.options import parse_addresses
from millrace.client.testing import server
from millrace.model.quantities import parse_duration
from millrace.server.console.liveness import LIVE_S
from millrace.server.errors import ConfigurationError
from millrace.server.options import LEASE_OF_LOG_S, ServerOptions
from millrace.server.settings import declared, load_settings
from millrace.wire.limits import CONSOLE_PORT, DATA_PORT
from tests.support.installed import ROOT
from tests.support.tables import table
from tests.test_dockerfile import arguments

PAGE: Final = (ROOT / "docs" / "deployment.md").read_text()
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
MANIFESTS: Final[dict[str, dict[str, Any]]] = {
    manifest["kind"]: manifest for manifest in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
}
POD: Final[dict[str, Any]] = MANIFESTS["StatefulSet"]["spec"]["template"]
CONTAINER: Final[dict[str, Any]] = POD["spec"]["containers"][0]
KUBERNETES_VERSIONS: Final = ("1.28", "1.33")
IMAGE: Final = dict(assignment.split("=", 1) for line in arguments("ENV") for assignment in line.split())
TOKEN: Final = {"MILLRACE_FRONT_TOKEN": "s3cret"}
(USER,) = arguments("USER")
(VOLUME,) = arguments("VOLUME")


@dataclass(frozen=True, slots=True)
class Started:
    """A server as a file starts it.

    Attributes:
        command: what follows `millrace`.
        environment: what the file sets.
        image: what the image sets, which is the weaker one.
        secret: what the administrator adds: a secret of the cluster, lines in a file that nobody else can read.
    """

    command: list[str]
    environment: dict[str, str]
    image: dict[str, str] = field(default_factory=lambda: IMAGE)
    secret: dict[str, str] = field(default_factory=dict)


def unit() -> configparser.RawConfigParser:
    """Return the unit of systemd on the page."""
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    (text,) = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    parser.read_string(text)
    return parser


def environment_file() -> dict[str, str]:
    """Return what the page sets for a server with a standby."""
    (text,) = re.findall(r"^```text\n(MILLRACE_.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return dict(line.split("=", 1) for line in text.splitlines())


def compose_servers() -> dict[str, dict[str, Any]]:
    """Return the services of Compose that run the image of the Dockerfile."""
    return {name: service for name, service in COMPOSE["services"].items() if "build" in service}


STARTED: Final = {
    **{name: Started(each["command"], each["environment"]) for name, each in compose_servers().items()},
    "kubernetes": Started(CONTAINER["args"], MANIFESTS["ConfigMap"]["data"], secret=TOKEN),
    "systemd": Started(shlex.split(unit()["Service"]["ExecStart"])[1:], environment_file(), {}, TOKEN),
}


def commands_of_page() -> list[str]:
    """Return each command `millrace` on the page, in shell sessions and in sentences."""
    sessions = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    parts = [part.strip() for session in sessions for part in re.split(r"&&|[|;\n]", session)]
    # `millrace restore` in a sentence is the name of a command, and no way to call it.
    named = [command for command in re.findall(r"`(millrace [^`]+)`", PAGE) if " --" in command]
    return sorted({part for part in parts if part.startswith("millrace ")} | set(named))


def parse(words: list[str]) -> dict[str, Any]:
    """Return the arguments and options that a command gets. Wrong ones raise."""
    command: Any = typer.main.get_command(make_app(words[:1]))
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    params: dict[str, Any] = command.make_context("millrace", rest).params
    return params


def options_of(started: Started, monkeypatch: pytest.MonkeyPatch) -> ServerOptions:
    """Return the settings with which a server runs, as `millrace serve` finds them."""
    for name, value in (started.image | started.environment | started.secret).items():
        monkeypatch.setenv(name, str(value))
    given = parse(started.command)
    names = {"data_dir": "data_dir", "listen": "listen", "console": "console", "store": "store", "log": "wal.place"}
    flags = {"standby": given["standby"] or None}
    return load_settings({name: given[option] for option, name in names.items()} | flags).options


@table("command", commands_of_page())
def test_the_commands_on_the_page_are_commands(command: str) -> None:
    parse(shlex.split(command)[1:])


@pytest.mark.parametrize("name", STARTED)
def test_each_file_starts_a_server_with_a_standby(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(STARTED[name], monkeypatch)

    assert options.has_remote_log
    assert options.store is not None
    assert options.standby is True
    assert options.console is not None
    assert (options.listen.port, options.console.port) == (DATA_PORT, CONSOLE_PORT)


@pytest.mark.parametrize("name", [name for name, started in STARTED.items() if started.secret])
def test_a_file_says_where_its_token_goes_and_starts_no_server_without_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE if name == "systemd" else (ROOT / "deploy" / f"{name}.yaml").read_text()

    assert "MILLRACE_FRONT_TOKEN=..." in text
    with pytest.raises(ConfigurationError, match=r"LISTEN|--listen"):
        options_of(replace(STARTED[name], secret={}), monkeypatch)


@table("name", STARTED)
def test_what_the_files_set_are_settings_and_no_secrets(name: str) -> None:
    known = {setting.variable: setting for setting in declared().values()}
    named = [variable for variable in STARTED[name].environment if variable.startswith("MILLRACE_")]

    assert [variable for variable in named if variable not in known or known[variable].is_secret] == []


def test_the_image_can_do_what_the_files_ask_for() -> None:
    (extras,) = re.findall(r"pip install .*'\.\[(.*)\]'", " ".join(arguments("RUN")))

    assert "store" in extras.split(",")


@pytest.mark.parametrize("name", STARTED)
def test_a_server_has_the_time_that_its_stop_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grace_s = {
        "kubernetes": POD["spec"]["terminationGracePeriodSeconds"],
        "systemd": float(unit()["Service"]["TimeoutStopSec"]),
        **{each: parse_duration(service["stop_grace_period"]) for each, service in compose_servers().items()},
    }

    # Where the store does not answer, the last request gets a second more, and the release waits as well.
    assert grace_s[name] >= 2 * options_of(STARTED[name], monkeypatch).shutdown_s


# --- Compose ---


def test_the_servers_of_compose_differ_in_their_ports_alone() -> None:
    first, second = compose_servers().values()

    assert {key: value for key, value in first.items() if key != "ports"} == {
        key: value for key, value in second.items() if key != "ports"
    }
    assert (ROOT / "deploy" / first["build"] / "Dockerfile").is_file()
    assert first["restart"] == "always"


def test_compose_publishes_both_ports_of_both_servers_on_the_loopback_alone() -> None:
    published = [port.rsplit(":", 2) for service in compose_servers().values() for port in service["ports"]]
    addresses = {f"{host}:{outside}" for host, outside, inside in published if int(inside) == DATA_PORT}

    assert {host for host, _, _ in published} == {"127.0.0.1"}
    assert sorted(int(inside) for _, _, inside in published) == [DATA_PORT] * 2 + [CONSOLE_PORT] * 2
    assert len({outside for _, outside, _ in published}) == len(published)
    (named,) = re.findall(r"MILLRACE_ADDRESS=(\S+)", PAGE)
    assert {str(address) for address in parse_addresses(named).members} == addresses
    consoles = {f"{host}:{outside}" for host, outside, inside in published if int(inside) == CONSOLE_PORT}
    assert set(re.findall(r"curl http://(\S+)/health http://(\S+)/health", PAGE)) == {tuple(sorted(consoles))}


def test_in_compose_only_the_store_has_a_volume() -> None:
    with_volumes = {name for name, service in COMPOSE["services"].items() if "volumes" in service}
    uid, _, gid = USER.partition(":")

    assert with_volumes == {"store"}
    for service in compose_servers().values():
        assert service["tmpfs"] == [f"{VOLUME}:uid={uid},gid={gid},mode=0700"]


def test_the_store_of_compose_is_where_the_servers_look_for_it() -> None:
    store = COMPOSE["services"]["store"]
    program = store["entrypoint"][-1]

    for name, service in compose_servers().items():
        environment, given = service["environment"], parse(service["command"])
        assert environment["AWS_ENDPOINT_URL"] == "http://store:7070", name
        assert environment["AWS_ACCESS_KEY_ID"] == store["environment"]["ROOT_ACCESS_KEY"]
        assert environment["AWS_SECRET_ACCESS_KEY"] == store["environment"]["ROOT_SECRET_KEY"]
        bucket = given["store"].removeprefix("s3://").partition("/")[0]
        assert f"mkdir -p /buckets/{bucket} " in program
    assert "--port :7070 --health /health posix /buckets" in program
    assert store["volumes"] == ["buckets:/buckets"]
    assert store["healthcheck"]["test"][-1] == "http://127.0.0.1:7070/health"


@pytest.mark.slow
def test_probes_and_health_checks_find_a_server_that_lives() -> None:
    checks = [service["healthcheck"]["test"] for service in compose_servers().values()]
    paths = {CONTAINER[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")}

    def run(check: list[str], console: str) -> int:
        marker, python, *words = check
        assert (marker, python) == ("CMD", "python")
        command = [word.replace(f"127.0.0.1:{CONSOLE_PORT}", console) for word in words]
        assert command != words
        return subprocess.run([sys.executable, *command], capture_output=True, check=False).returncode

    with server(console="127.0.0.1:0") as running:
        console = running.console_address
        assert [run(check, console) for check in checks] == [0, 0]
        for path in paths:
            with urllib.request.urlopen(f"http://{console}{path}") as answer:
                assert answer.status == 200
                json.loads(answer.read())
    assert run(checks[0], console) == 1


# --- Kubernetes ---


@table("version", KUBERNETES_VERSIONS)
@table("kind", MANIFESTS)
def test_the_manifests_are_right_by_the_schemas_of_kubernetes(kind: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[kind], version, strict=True)


def test_there_is_no_namespace_and_no_secret_in_the_manifests() -> None:
    assert set(MANIFESTS) == {"ServiceAccount", "ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    assert [kind for kind, manifest in MANIFESTS.items() if "namespace" in manifest["metadata"]] == []
    assert {manifest["metadata"]["name"] for manifest in MANIFESTS.values()} == {"millrace"}
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} & set(MANIFESTS["ConfigMap"]["data"])
    assert CONTAINER["envFrom"] == [{"configMapRef": {"name": "millrace"}}, {"secretRef": {"name": "millrace"}}]


def test_all_selectors_of_the_manifests_choose_the_pods() -> None:
    labels = POD["metadata"]["labels"]
    spread = POD["spec"]["topologySpreadConstraints"]

    assert MANIFESTS["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    assert [each["labelSelector"]["matchLabels"] for each in spread] == [labels, labels]
    assert MANIFESTS["StatefulSet"]["spec"]["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    assert POD["spec"]["serviceAccountName"] == MANIFESTS["ServiceAccount"]["metadata"]["name"]


def test_the_ports_of_the_manifests_are_those_of_the_image() -> None:
    ports = {"data": DATA_PORT, "console": CONSOLE_PORT}

    assert arguments("EXPOSE") == [" ".join(map(str, ports.values()))]
    assert {port["name"]: port["containerPort"] for port in CONTAINER["ports"]} == ports
    assert {port["targetPort"]: port["port"] for port in MANIFESTS["Service"]["spec"]["ports"]} == ports
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {"console"}


def test_the_page_names_the_addresses_of_all_pods() -> None:
    spec = MANIFESTS["StatefulSet"]["spec"]
    addresses = ",".join(f"millrace-{index}.{spec['serviceName']}:{DATA_PORT}" for index in range(spec["replicas"]))

    assert f"`{addresses}`" in PAGE
    assert f" {addresses}\n" in (ROOT / "deploy" / "kubernetes.yaml").read_text()


def test_a_standby_counts_as_ready() -> None:
    """Else an update and a drained node would wait for it without end."""
    for probe in ("readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] == "/livez"
        assert CONTAINER[probe]["timeoutSeconds"] > LIVE_S
    assert (
        MANIFESTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1 < MANIFESTS["StatefulSet"]["spec"]["replicas"]
    )


def test_the_server_can_write_where_it_has_to_and_nowhere_else() -> None:
    mounts = [PurePosixPath(mount["mountPath"]) for mount in CONTAINER["volumeMounts"]]
    folder = PurePosixPath(MANIFESTS["ConfigMap"]["data"]["MILLRACE_DATA_DIR"])
    security = POD["spec"]["securityContext"]

    # Below the volume, which belongs to root.
    assert folder.parent == PurePosixPath(VOLUME)
    assert mounts == [PurePosixPath(VOLUME), PurePosixPath("/tmp")]
    assert [each["emptyDir"] for each in POD["spec"]["volumes"]] == [{}, {}]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == USER
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]


# --- the page ---


def test_the_folder_of_the_unit_is_the_one_that_systemd_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(STARTED["systemd"], monkeypatch)

    assert str(options.data_folder) == f"/var/lib/{unit()['Service']['StateDirectory']}"


def test_the_length_of_the_lease_is_told_as_it_is() -> None:
    assert f"[lease](object-store.md#who-owns-the-history) of {LEASE_OF_LOG_S:g} s" in PAGE
    assert f"The start waits {LEASE_OF_LOG_S:g} s for the lease" in PAGE
