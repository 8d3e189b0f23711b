"""No wait without a deadline or a warning: what may wait for ever is on the list below, with who ends it. A new one fails here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path
    for path in [*ROOT.glob("core/asyncrl/**/*.py"), *ROOT.glob("plugins/*/*/asyncrl_*/**/*.py")]
    if "testing" not in path.parts and "templates" not in path.parts
)
WAITS = {"wait", "join", "communicate", "recv"}
STARTS = {"run", "call", "check_call", "check_output"}
CLI, ROLLOUT, RUNTIME = "core/asyncrl/cli", "core/asyncrl/rollout", "core/asyncrl/runtime"
TORCH, WANDB = "plugins/engines/torch/asyncrl_torch", "plugins/loggers/wandb/asyncrl_wandb"
ALLOWED = {
    (f"{CLI}/check.py", "look_at"): "the process was killed",
    (f"{CLI}/test.py", "_pytest"): "the suite that the user started; each of its tests has a deadline",
    ("core/asyncrl/evaluation/dispatcher.py", "_admit"): "the evaluation warns, and has eval_timeout",
    ("core/asyncrl/evaluation/dispatcher.py", "_until_settled"): "inside a Wait",
    (f"{ROLLOUT}/front.py", "_until_open"): "inside a Wait",
    (f"{ROLLOUT}/producer_loop.py", "_run"): "idle until there is something to do; the gate warns if nothing comes",
    (f"{RUNTIME}/cluster.py", "connect"): "the thread that Ray's processes live with, until the run stops",
    (f"{RUNTIME}/supervisor.py", "_either"): "beside a task that warns itself",
    (f"{RUNTIME}/supervisor.py", "_one_is_up"): "inside a Wait",
    (f"{TORCH}/http.py", "generate"): "the client has request_timeout, and leaves",
    (f"{TORCH}/http.py", "_stream"): "the client has request_timeout, and leaves",
    (f"{TORCH}/server.py", "serve"): "the server's life",
    (f"{TORCH}/worker.py", "_run"): "idle until there is a request",
    (f"{WANDB}/link.py", "_feed"): "in a thread that is given up at the link's deadline, and its process killed",
    (f"{WANDB}/link.py", "_close"): "the process was killed",
    ("plugins/trainers/fsdp/asyncrl_fsdp/broadcast.py", "send"): "the work is done: it was waited for with a deadline",
}


def waits_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (function, call) of every call that waits for something, and says no deadline."""
    bounded: set[int] = set()

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.AsyncWith) and any("asyncio.timeout(" in ast.unparse(item) for item in node.items):
            bounded.update(id(each) for statement in node.body for each in ast.walk(statement))
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(("wait_for", "asyncio.wait")):  # what bounds, or says what it waits for, has its own line
                bounded.update(id(each) for argument in node.args for each in ast.walk(argument))
            if id(node) not in bounded and _waits(node, called):
                yield function, called
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def _waits(node: ast.Call, called: str) -> bool:
    named = {keyword.arg for keyword in node.keywords}
    owner, _, method = called.rpartition(".")
    if called in ("ray.get", "ray.wait") or (owner == "subprocess" and method in STARTS):
        return "timeout" not in named
    return method in WAITS and bool(owner) and not node.args and not named


def test_every_wait_has_a_deadline_or_somebody_who_ends_it() -> None:
    found = {
        (str(path.relative_to(ROOT)), function): called
        for path in FILES
        for function, called in waits_of(ast.parse(path.read_text()))
    }
    new = {place: called for place, called in found.items() if place not in ALLOWED}
    assert not new, f"give these a deadline, or a warning and a line in ALLOWED: {new}"
    assert not set(ALLOWED) - set(found), "these lines of ALLOWED are of no use any more"


def test_a_new_wait_is_seen() -> None:
    source = """
def f(process, thread, calls):
    ray.get(calls)
    subprocess.run(["x"])
    process.wait()
    thread.join()
    ray.get(calls, timeout=3)
    subprocess.run(["x"], timeout=3)
    process.wait(3)
    ", ".join("abc")
async def g(event):
    await asyncio.wait_for(event.wait(), 3)
    await event.wait()
"""
    assert list(waits_of(ast.parse(source))) == [
        ("f", "ray.get"),
        ("f", "subprocess.run"),
        ("f", "process.wait"),
        ("f", "thread.join"),
        ("g", "event.wait"),
    ]
