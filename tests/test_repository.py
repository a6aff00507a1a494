"""What must hold of the tree itself: names, secrets, versions and cards, found by reading it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src" / "insitu").rglob("*.py"))
ALL = sorted(
    path
    for top in ("src", "csrc", "tests", "docs", "scripts", ".ci", "benchmarks")
    for path in (ROOT / top).rglob("*")
    if path.is_file() and path.suffix not in {".so", ".pyc"} and "__pycache__" not in path.parts
) + sorted(ROOT.glob("*.md"))
# Families of models. Pre-tokenizers carry such names in files, so the codec may say them.
FAMILIES = re.compile(
    r"\b(llama|qwen\d?|gemma\d?|mistral|mixtral|phi\d?|granite|olmo\w|smollm3|stablelm|gpt2|bert)\b",
    re.IGNORECASE,
)
ROOMS_WITHOUT_FAMILIES = ("kernels", "models", "engine", "llm", "server", "policy", "cli")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_only_one_file_names_the_extension() -> None:
    named = {relative(path) for path in SOURCES if "_native" in imported_names(path)}
    assert named == {"src/insitu/kernels/native.py"}


def imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            names |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    return names


def test_families_are_named_in_their_own_files_only() -> None:
    for path in SOURCES:
        room = path.relative_to(ROOT / "src" / "insitu").parts
        if room[0] not in ROOMS_WITHOUT_FAMILIES or "families" in room:
            continue
        found = FAMILIES.findall(code_of(path))
        assert not found, f"{relative(path)} names {found}"


def code_of(path: Path) -> str:
    """The file without its docstrings and comments: what can branch on a name."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.unparse(tree)


def test_nothing_executes_data() -> None:
    forbidden_modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    forbidden_calls = {"eval", "exec", "compile", "__import__"}
    for path in SOURCES:
        assert not imported_names(path) & forbidden_modules, relative(path)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden_calls, f"{relative(path)}:{node.lineno}"


def test_the_changelogs_top_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    top = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert top is not None
    assert top[1] == project["version"]


def test_the_installed_version_is_the_trees() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        installed = version("insitu")
    except PackageNotFoundError:
        pytest.skip("the package is not installed, its tree is on the path")
    assert installed == project["version"]


def test_no_file_names_a_machine() -> None:
    # Put together here, so that this file does not name them either.
    places = ["/" + name + "/" for name in ("work", "root", "home", "opt", "Users")]
    for path in ALL:
        text = path.read_text("utf-8", errors="replace")
        for place in places:
            found = re.search(rf"(?<![\w.~/{{}}]){place}\w", text)
            assert found is None, f"{relative(path)} names a place of one machine: {place}"


def test_no_card_is_missing_and_the_rooms_page_is_theirs() -> None:
    for room in (ROOT / "src" / "insitu").iterdir():
        if room.is_dir() and room.name != "__pycache__":
            card = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))) or ""
            assert "May import" in card, f"{room.name} has no card"
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "rooms"), "--check"], check=False)
    assert done.returncode == 0


def test_sizes_are_kept() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "size")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_readme_begins_with_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text("utf-8").split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", first_screen, re.DOTALL)
    assert blocks == ["pip install . && insitu chat\n", "pip install '.[test]' && pytest\n"]
