"""Runs as a process of its own: keeps a private Ray cluster with one actor, which rebuilds plugins and answers one hook of each.

One JSON object a line comes in, one goes out. Ends, with everything that Ray started, when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback
from typing import Any

START_TIMEOUT = 240.0
ANSWER_TIMEOUT = 240.0


class Rebuilder:
    """The actor."""

    def answer(self, job: dict[str, Any]) -> Any:
        """Rebuild a plugin from what crosses to other processes and return what one of its hooks answers, as JSON data.

        Args:
            job: ``spec`` and ``facts`` (fields of `PluginSpec` and `RunFacts`), ``path`` (module search path), ``extra``.
        """
        from asyncrl.authoring import RunFacts
        from asyncrl.plugins import PluginSpec, build_host
        from asyncrl.testing.answers import answer

        sys.path += [entry for entry in job["path"] if entry not in sys.path]
        importlib.invalidate_caches()
        run = RunFacts(**job["facts"])
        host = build_host([PluginSpec(**job["spec"])], run)
        return answer(host, run, job["extra"])


async def main() -> None:
    import ray

    from asyncrl.runtime.cluster import Cluster, ask

    out, sys.stdout = sys.stdout, sys.stderr  # what Ray prints is no answer
    cluster = Cluster("", [])
    try:
        await cluster.start(START_TIMEOUT)
        actor = ray.remote(Rebuilder).options(num_cpus=0).remote()
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                reply = {"answer": await ask(actor.answer.remote(json.loads(line)), "the actor", ANSWER_TIMEOUT)}
            except Exception as error:
                reply = {"error": str(error), "detail": "".join(traceback.format_exception(error))}
            print(json.dumps(reply), file=out, flush=True)
    finally:
        cluster.stop()


if __name__ == "__main__":
    asyncio.run(main())
