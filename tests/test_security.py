"""What no code of the project does: read a pickle, or run the code that a model brings. Ruff's S rules say the rest (`pyproject.toml`)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path for top in ("core/asyncrl", "plugins") for path in (ROOT / top).rglob("*.py") if not {"tests", "build"} & {*path.parts}
)
PICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
OBJECTS_ON_SOCKETS = {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list"}
"""Collectives of torch that carry pickles."""


def faults(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (f"{node.lineno}: imports {name}" for name in names if name.partition(".")[0] in PICKLING)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if given.get("allow_pickle", "False") != "False":
            yield f"{node.lineno}: {called} takes pickles"
        if called == "torch.load" and given.get("weights_only") != "True":
            yield f"{node.lineno}: torch.load without weights_only=True"
        if name in OBJECTS_ON_SOCKETS:
            yield f"{node.lineno}: {called} carries pickles"
        if given.get("trust_remote_code", "False") != "False":
            yield f"{node.lineno}: {called} trusts remote code"
        if called.startswith("Auto") and name in ("from_pretrained", "from_config") and "trust_remote_code" not in given:
            yield f"{node.lineno}: {called} does not say trust_remote_code=False"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickles_and_no_code_of_models(path: Path) -> None:
    assert list(faults(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from cloudpickle import loads", "np.load(f, allow_pickle=True)", "torch.load(f)"),
        *("AutoTokenizer.from_pretrained(f)", "AutoConfig.from_pretrained(f, trust_remote_code=trust)"),
        "dist.broadcast_object_list(x)",
    ],
)
def test_each_of_them_would_be_found(line: str) -> None:
    assert list(faults(ast.parse(line)))


@pytest.mark.parametrize("line", ["eval(x)", "subprocess.run(x, shell=True)", "yaml.load(x)", "pickle.loads(x)", "exec(x)"])
def test_ruff_finds_the_rest(line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "S", "-"]
    assert subprocess.run(command, input=f"import pickle, subprocess, yaml\n{line}\n", text=True, capture_output=True).returncode
    settings = (ROOT / "pyproject.toml").read_text()
    assert '"S"]\nignore' in settings
