from pathlib import Path

from millrace.spark_source.application import application_name, name_in
from tests.support.tables import table

SUBMIT = "org.apache.spark.deploy.SparkSubmit"


@table(
    ("command", "name"),
    [
        (["java", "-cp", "jars", SUBMIT, "--conf", "spark.app.name=My App", "pyspark-shell", ""], "My App"),
        (["java", SUBMIT, "--conf", "spark.master=local", "--name", "nightly", "etl.py", ""], "nightly"),
        (["java", SUBMIT, "pyspark-shell"], None),
        (["java", "--name", "other", "Main"], None),
        (["python", "-m", "pyspark.daemon"], None),
    ],
)
def test_the_command_of_the_jvm_has_the_name(command: list[str], name: str | None) -> None:
    assert name_in(command) == name


def test_the_jvm_is_an_ancestor(tmp_path: Path) -> None:
    def process(number: str, parent: int, *command: str) -> None:
        (tmp_path / number).mkdir()
        (tmp_path / number / "cmdline").write_text("\0".join([*command, ""]))
        (tmp_path / number / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")

    process("self", 7, "python", "-m", "pyspark.daemon")
    process("7", 5, "python", "-m", "pyspark.daemon")
    process("5", 1, "java", SUBMIT, "--conf", "spark.app.name=Orders / é\n", "pyspark-shell")
    assert application_name(tmp_path) == "Orders-é"
    (tmp_path / "5" / "cmdline").write_text("init")
    assert application_name(tmp_path) is None
    assert application_name(tmp_path / "none") is None
