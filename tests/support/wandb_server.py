"""As much of a W&B server as its client needs to upload a run, and what was uploaded."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = {
    "id": "b",
    "name": "r",
    "displayName": "r",
    "description": None,
    "config": "{}",
    "sweepName": None,
    "historyLineCount": 0,
    "project": {"id": "p", "name": "project", "entity": {"id": "e", "name": "entity"}},
}
ANSWERS: dict[str, Any] = {
    "ServerFeaturesQuery": {"serverInfo": {"features": []}},
    "Viewer": {"viewer": {"id": "v", "entity": "entity", "username": "u", "flags": "{}", "teams": {"edges": []}}},
    "UpsertBucket": {"upsertBucket": {"bucket": BUCKET, "inserted": True}},
    "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
    "RunResumeStatus": {"model": {"id": "p", "name": "project", "entity": {"id": "e", "name": "entity"}, "bucket": None}},
}


class WandbServer:
    """`rows` are the history lines that came, `config` the newest, `exit_code` that of the run; `taking` cleared holds uploads up.

    `ids` are the runs that clients named, each once. One that is gone on with finds what the rows told.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.url = ""
        self.taking = threading.Event()
        self.taking.set()
        self.asked: list[str] = []
        self.ids: list[str] = []

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["operationName"]
        self.asked.append(name)
        if name == "UpsertBucket" and (config := request["variables"].get("config")):
            self.config = {key: entry["value"] for key, entry in json.loads(config).items()}
        if name == "UpsertBucket" and (run_id := request["variables"].get("name")) and run_id not in (BUCKET["name"], *self.ids):
            self.ids.append(run_id)
        if name == "RunResumeStatus" and self.rows:
            return {"data": {"model": ANSWERS[name]["model"] | {"bucket": self._bucket()}}}
        return {"data": ANSWERS.get(name, {})}

    def _bucket(self) -> dict[str, Any]:
        """A run as the server knows it."""
        summary: dict[str, Any] = {}
        for row in self.rows:
            summary |= row
        lines = {"historyLineCount": len(self.rows), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([json.dumps(self.rows[-1])]), "eventsTail": json.dumps([])}
        return (
            BUCKET
            | lines
            | tails
            | {"summaryMetrics": json.dumps(summary), "config": "{}", "wandbConfig": '{"t": 1}', "tags": []}
        )

    def stream(self, request: dict[str, Any]) -> dict[str, Any]:
        self.taking.wait()
        for line in request.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
            self.rows.append(json.loads(line))
        if request.get("complete"):
            self.exit_code = request["exitcode"]
        return {}

    def axes(self) -> dict[str, str]:
        """The axis of each metric, as the run's config tells the server."""
        metrics = self.config["_wandb"][
            "m"
        ]  # numbers stand for the names of W&B's own protocol; 5 is a place in this list, from 1
        return {one["1"]: metrics[one["5"] - 1]["1"] for one in metrics if "1" in one and "5" in one}


@contextmanager
def serving(server: WandbServer) -> Iterator[WandbServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            take = {"graphql": server.graphql, "file_stream": server.stream}.get(self.path.rsplit("/", 1)[-1])
            answer = json.dumps(take(json.loads(body)) if take else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError):  # the client has gone
                super().handle()

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.block_on_close = False
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.taking.set()
        http.shutdown()
        thread.join()
        http.server_close()
