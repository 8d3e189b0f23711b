"""The server process.

    python -m asyncrl_torch.server --model DIR --port 30000

Binds its port before it loads the model, so that a port in use is told at once; answers once the model is loaded.
Where the environment variable ASYNCRL_ENGINE_KEY holds a key, requests must carry it as their bearer token.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from asyncrl.stacks import register, watch_loop

from asyncrl_torch import KEY_VARIABLE
from asyncrl_torch.lifetime import end_with

CANNOT_START = 2


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="asyncrl_torch.server", description="Serve a Hugging Face causal language model.")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", default="cpu", help="torch device, such as cpu or cuda:0")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--max-running", type=int, default=256, help="requests that generate at the same time; others wait")
    parser.add_argument("--max-context", type=int, default=0, help="longest prompt plus output; 0 for the model's own limit")
    parser.add_argument("--prefill-tokens", type=int, default=4096, help="prompt tokens computed in one pass")
    parser.add_argument("--prefix-entries", type=int, default=256, help="prompts kept in the prefix cache; 0 turns it off")
    parser.add_argument("--prefix-tokens", type=int, default=65536, help="tokens kept in the prefix cache in all")
    parser.add_argument("--weights-timeout", type=float, default=120.0, help="seconds to wait for a weight group or a broadcast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process ends")
    return parser.parse_args(argv)


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, not listening yet. Ends the process with one line when it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror or error}"
        give_up(f"port {port} of {host} {reason}")
    return sock


def give_up(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(CANNOT_START)


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    register(f"torch engine server on port {arguments.port}")
    if arguments.parent_pid:
        end_with(arguments.parent_pid)
    os.environ.setdefault("OMP_NUM_THREADS", str(arguments.threads))
    if not arguments.model.is_dir():
        give_up(f"no such model directory: {arguments.model}")
    sock = listen(arguments.host, arguments.port)
    asyncio.run(serve(arguments, sock, os.environ.pop(KEY_VARIABLE, "")))


async def serve(arguments: argparse.Namespace, sock: socket.socket, api_key: str) -> None:
    """Load the model and answer until SIGTERM or SIGINT."""
    # heavy imports come after the port is known to be ours
    import torch
    from aiohttp import web

    from asyncrl_torch.batcher import Batcher
    from asyncrl_torch.collective import WeightGroups
    from asyncrl_torch.http import Api, ServerFacts
    from asyncrl_torch.model import ModelRunner, UnsupportedModel, load_model, model_limits
    from asyncrl_torch.prefixes import PrefixCache
    from asyncrl_torch.updates import WeightUpdates
    from asyncrl_torch.weights import ModelWeights
    from asyncrl_torch.worker import Worker

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    try:
        device = torch.device(arguments.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UnsupportedModel(f"device {arguments.device} is not there")
        model = load_model(arguments.model, device, getattr(torch, arguments.dtype))
        limits = model_limits(model, arguments.model, arguments.max_context)
        runner = ModelRunner(model, limits.max_context, arguments.prefill_tokens)
    except (UnsupportedModel, RuntimeError) as error:
        give_up(str(error))
    prefixes = PrefixCache(arguments.prefix_entries, arguments.prefix_tokens)
    worker = Worker(Batcher(runner, prefixes, max_running=arguments.max_running, seed=arguments.seed))
    groups = WeightGroups(device, arguments.weights_timeout)
    updates = WeightUpdates(worker, ModelWeights(model), groups, str(arguments.model))
    facts = ServerFacts(arguments.device, arguments.dtype, arguments.max_running, limits)

    watch_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    site = web.AppRunner(Api(worker, updates, facts, api_key).application(), access_log=None, handler_cancellation=True)
    await site.setup()
    await web.SockSite(site, sock, backlog=1024).start()
    worker.start()
    print(f"serving {arguments.model} at http://{arguments.host}:{arguments.port}", flush=True)
    await stop.wait()
    worker.stop(timeout=0.5)
    sys.stdout.flush()
    os._exit(0)  # a step or a collective that still runs in a thread must not hold the process


if __name__ == "__main__":
    main()
