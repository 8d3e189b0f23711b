"""Who may import whom: core never a plugin, a plugin never another one, and core nothing heavy when it is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import asyncrl
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "core" / "asyncrl"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/*/*/__init__.py") if path.parent.name != "tests")
PACKAGES = {package.name for package in PLUGINS}
HEAVY = {"torch", "ray", "transformers"}
PARENTS = {package: package.parent for package in PLUGINS}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every absolute import below a node as (module, name); the name is '' for a plain `import module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def imports_when_imported(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Like `imports`, of the statements that run when the module is imported: no function bodies, nothing under TYPE_CHECKING."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from imports_when_imported(statement.orelse)
            continue
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt | ast.ExceptHandler)]
        yield from imports_when_imported([child for child in inner if isinstance(child, ast.stmt)])
        yield from imports_when_imported([line for child in inner if isinstance(child, ast.ExceptHandler) for line in child.body])
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from imports(statement)


def is_public(module: str, name: str) -> bool:
    """Whether a plugin may write `from module import name` (or `import module`)."""
    if any(part.startswith("_") for part in [*module.split("."), name]):
        return False
    if module == "asyncrl" and name in asyncrl.__all__:
        return True
    path = CORE.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@pytest.mark.parametrize("package", PLUGINS, ids=relative)
def test_a_plugin_imports_only_public_names_of_asyncrl_and_no_other_plugin(package: Path) -> None:
    for file in sources(package):
        tree = ast.parse(file.read_text())
        for module, name in imports(tree):
            top = module.split(".")[0]
            assert top not in PACKAGES - {package.name}, f"{relative(file)} imports {module}"
            if top == "asyncrl":
                assert is_public(module, name), f"{relative(file)} imports {module} {name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asyncrl":
                assert is_public("asyncrl", node.attr), f"{relative(file)} uses asyncrl.{node.attr}"


@pytest.mark.parametrize("package", PLUGINS, ids=relative)
def test_a_plugin_declares_every_distribution_it_imports(package: Path) -> None:
    lines = [
        line
        for folder in [PARENTS[package], ROOT / "core"]
        for line in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    declared = {canonicalize_name(Requirement(line).name) for line in lines} | {"asyncrl-core"}
    providers = packages_distributions()
    for file in sources(package):
        for module, _ in imports(ast.parse(file.read_text())):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top in {package.name, "asyncrl"}:
                continue
            found = {canonicalize_name(name) for name in providers.get(top, [])}
            assert found & declared, f"{relative(file)} imports {top}, of {sorted(found)}, which its pyproject.toml does not name"


@pytest.mark.parametrize("file", sources(CORE), ids=relative)
def test_core_imports_no_plugin_and_nothing_heavy_when_it_is_imported(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert not {module.split(".")[0] for module, _ in imports(tree)} & PACKAGES
    if "runtime" not in file.relative_to(CORE).parts:
        assert not {module.split(".")[0] for module, _ in imports_when_imported(tree.body)} & HEAVY


def test_importing_all_of_core_but_its_runtime_loads_neither_torch_nor_ray() -> None:
    parts = [file.relative_to(CORE.parent).with_suffix("").parts for file in sources(CORE)]
    modules = [".".join(part).removesuffix(".__init__") for part in parts if "runtime" not in part and part[-1] != "__main__"]
    assert len(modules) > 10
    code = "\n".join([*(f"import {module}" for module in modules), "import sys", f"print(sorted({HEAVY!r} & set(sys.modules)))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def test_every_public_name_of_asyncrl_exists() -> None:
    for name in asyncrl.__all__:
        assert getattr(asyncrl, name) is not None
