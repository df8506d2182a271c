"""The wheel and the editable install both show the folders as `twophase`, `twophase.sinks`, and so on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tools.link_tree import lay_out

ROOT = Path(__file__).resolve().parent.parent
FOLDER_OF = {
    "twophase": "twophase",
    "twophase.sinks": "sinks",
    "twophase.sources": "sources",
    "twophase.connectors": "connectors",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built from a copy: setuptools leaves a build folder beside what it builds."""
    work = tmp_path_factory.mktemp("wheel")
    (work / "source").mkdir()
    for file in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / file, work / "source")
    for folder in (*FOLDER_OF.values(), "tests", "integration_tests"):
        shutil.copytree(ROOT / folder, work / "source" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", work)
    subprocess.run([*pip, *options, work / "source"], check=True)
    (built,) = work.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(work / "unpacked")
    return work / "unpacked"


def files_below(folder: Path, pattern: str) -> set[str]:
    # glob.rglob would not follow the tree's links to folders.
    return {
        (Path(parent) / name).relative_to(folder).as_posix()
        for parent, folders, names in os.walk(folder, followlinks=True)
        if Path(parent).name != "__pycache__"
        for name in names
        if Path(name).match(pattern)
    }


def locate(module: str, *, cwd: Path, options: tuple[str, ...] = (), pythonpath: Path | None = None) -> Path:
    """Where a fresh interpreter finds the module."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if pythonpath is not None:
        env["PYTHONPATH"] = str(pythonpath)
    program = f"import {module}; print({module}.__file__)"
    command = [sys.executable, *options, "-c", program]
    answer = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return Path(answer.stdout.strip())


def test_the_wheel_has_every_package_what_is_no_module_and_the_license(wheel: Path) -> None:
    files = files_below(wheel, "*")

    assert {f"{package.replace('.', '/')}/__init__.py" for package in FOLDER_OF} <= files
    lists = {f"twophase/testing/servers/{name}.xml" for name in ("servers", "jdbc")}
    assert {"twophase/py.typed", *lists} <= files
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in files)


def test_the_wheel_puts_nothing_generic_into_site_packages(wheel: Path) -> None:
    version = metadata(wheel)["Version"]

    assert {entry.name for entry in wheel.iterdir()} == {"twophase", f"twophase-{version}.dist-info"}


def test_the_wheel_has_every_module_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Packages are listed by hand: a new folder that nobody listed would be missing from the wheel alone."""
    lay_out(ROOT, tmp_path)

    assert files_below(wheel / "twophase", "*.py") == files_below(tmp_path / "twophase", "*.py")


def test_the_wheel_requires_no_vendor_unless_an_extra_asks_for_it(wheel: Path) -> None:
    requirements = metadata(wheel).get_all("Requires-Dist", [])

    unconditional = {line for line in requirements if "extra ==" not in line}
    assert unconditional == {"numpy", "pandas<3", "pyarrow", "pyspark<5,>=4.3"}
    extras = {"all", "dev", "hdfs", "kafka", "postgres", "pravega", "rocksdb", "testing"}
    assert set(metadata(wheel).get_all("Provides-Extra", [])) == extras


def metadata(wheel: Path) -> Message:
    (file,) = wheel.glob("*.dist-info/METADATA")
    return Parser().parsestr(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", FOLDER_OF)
def test_the_wheel_alone_is_importable(wheel: Path, module: str) -> None:
    # -S: without site-packages, and so without the editable install; -P: without the current folder.
    found = locate(module, cwd=wheel.parent, options=("-S", "-P"), pythonpath=wheel)

    assert found == wheel / module.replace(".", "/") / "__init__.py"


@pytest.mark.parametrize("cwd", [Path("/"), ROOT], ids=["from-anywhere", "from-the-root"])
@pytest.mark.parametrize("module", FOLDER_OF)
def test_the_editable_install_is_importable(module: str, cwd: Path) -> None:
    found = locate(module, cwd=cwd)

    assert found.resolve() == ROOT / FOLDER_OF[module] / "__init__.py"


def test_the_tree_of_links_forgets_what_the_repository_no_longer_has(tmp_path: Path) -> None:
    root, tree = tmp_path / "root", tmp_path / "tree"
    for folder in FOLDER_OF.values():
        (root / folder).mkdir(parents=True)
    (root / "twophase" / "old.py").touch()
    (root / "tests").mkdir()
    lay_out(root, tree)
    assert (tree / "twophase" / "old.py").exists()
    assert (tree / "tests").is_dir()

    (root / "twophase" / "old.py").rename(root / "twophase" / "new.py")
    (root / "tests").rmdir()
    lay_out(root, tree)

    assert {entry.name for entry in tree.iterdir()} == {"twophase"}
    assert {entry.name for entry in (tree / "twophase").iterdir()} == {"new.py", "sinks", "sources", "connectors"}


def test_the_tree_of_links_refuses_to_lie_inside_the_repository() -> None:
    with pytest.raises(SystemExit, match="inside the repository"):
        lay_out(ROOT, ROOT / "tree")
    assert not (ROOT / "tree").exists()
