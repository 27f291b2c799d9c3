from pathlib import Path

import pytest

from benchmarks.rivals.kafka import connector, resolve
from benchmarks.session import AbsentError

FINDS = """#!/bin/sh
for argument; do
    case $argument in -Dmdep.outputFile=*) printf '%s' "$JARS" >"${argument#*=}";; esac
done
"""
FAILS = """#!/bin/sh
echo "[INFO] looking"
echo "[ERROR] nobody has it"
echo "[ERROR] Help"
exit 1
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the path before the system's; Java is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "java", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_without_maven_kafka_is_absent_and_what_to_install_is_named(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="apt-get install maven"):
        resolve(tmp_path, "group:name:1")


def test_jars_that_cannot_be_had_are_named_with_the_reason(programs: Path, tmp_path: Path) -> None:
    program(programs / "mvn", FAILS)

    with pytest.raises(AbsentError, match=r"Maven cannot get group:name:1, group:other:2: nobody has it$"):
        resolve(tmp_path, "group:name:1", "group:other:2")


def test_the_jars_are_where_maven_says_and_spark_is_given_what_it_lacks(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs / "mvn", FINDS)
    names = ["spark-sql-kafka-0-10_2.13-1.jar", "kafka-clients-1.jar", "scala-library-1.jar"]
    monkeypatch.setenv("JARS", ":".join(f"/jars/{name}" for name in names))

    assert resolve(tmp_path, "group:name:1") == [Path("/jars", name) for name in names]
    assert connector(tmp_path, "4.0.0") == [Path("/jars", name) for name in names[:2]]
    assert [path for path in tmp_path.iterdir() if path != programs] == []
