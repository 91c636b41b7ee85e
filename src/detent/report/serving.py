"""Serving the page to browsers on this machine, up to date while runs continue."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from detent.errors import BadInput, DetentError
from detent.report.compact import once
from detent.report.comparisons import Reference
from detent.report.loading import found_runs, runs_at
from detent.report.page import html, page_data
from detent.report.studies import FILE, found_studies
from detent.report.summaries import RunSummary

LOOPBACK = "127.0.0.1"
Stamp = tuple[tuple[int, int], ...]
"""Times and sizes of a run's files, or of a compact file; changes when they do."""


class Watch:
    """The data of the page about some directories and compact files; only what has changed is read again."""

    def __init__(self, places: Sequence[str], reference: Reference | None = None) -> None:
        self._places, self._reference = places, reference
        self._known: dict[Path, tuple[Stamp, list[RunSummary]]] = {}
        self._studies: dict[Path, Stamp] = {}
        self._data: dict[str, Any] = {}
        self._lock = Lock()
        self.data()

    def data(self) -> dict[str, Any]:
        """The current data."""
        with self._lock:
            now = {path: (_stamp(path), name) for path, name in found_runs(self._places)}
            studies = {place: _stamp(place / FILE) for place in found_studies(self._places)}
            before = {path: stamp for path, (stamp, _) in self._known.items()}, self._studies
            if not self._data or ({path: stamp for path, (stamp, _) in now.items()}, studies) != before:
                self._known = {path: (stamp, self._runs(path, stamp, name)) for path, (stamp, name) in now.items()}
                runs = once([run for _, runs in self._known.values() for run in runs])
                self._studies = studies
                self._data = page_data(runs, self._reference, live=True, studies=list(studies))
            return self._data

    def _runs(self, path: Path, stamp: Stamp, name: str) -> list[RunSummary]:
        before = self._known.get(path)
        return before[1] if before and before[0] == stamp else runs_at(path, name)


def _stamp(path: Path) -> Stamp:
    found = []
    names = ("run.json", "records.jsonl", "status.json", "policy.safetensors")
    for file in [path] if path.is_file() else [path / name for name in names]:
        try:
            about = file.stat()
            found.append((about.st_mtime_ns, about.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 60
    """Seconds until a connection on which nothing is asked is closed."""

    def do_GET(self) -> None:
        # Another site whose name resolves to this machine must not read the runs through a user's browser.
        name, _, port = self.headers.get("Host", "").partition(":")
        if name.lower() not in (LOOPBACK, "localhost") or not (port or "0").isdecimal():
            return self._answer(403, b"This page is available on this machine only.", "text/plain")
        try:
            asked = urlsplit(self.path)
        except ValueError:
            return self._answer(400, b"This is not an address of a page.", "text/plain")
        if asked.path not in ("/", "/data.json"):
            return self._answer(404, b"There is only one page: /", "text/plain")
        try:
            data = self.server.watch.data()
        except (DetentError, OSError) as error:  # a directory was removed, a file damaged
            return self._answer(503, str(error).encode(errors="replace"), "text/plain")
        if asked.path == "/":
            return self._answer(200, html(data), "text/html")
        if parse_qs(asked.query).get("version") == [data["version"]]:
            return self._answer(204)
        return self._answer(200, json.dumps(data, allow_nan=False).encode(), "application/json")

    def _answer(self, code: int, body: bytes = b"", kind: str = "") -> None:
        self.send_response(code)
        if body:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing: a line per request would be noise."""


class Server(ThreadingHTTPServer):
    """Serves the page about `watch` to this machine; port 0 selects a free one."""

    daemon_threads = True

    def __init__(self, watch: Watch, port: int) -> None:
        self.watch = watch
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or "it must be from 0 to 65535"
            raise BadInput(f"Cannot serve on port {port}: {why}.") from error

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that closed the connection; for anything else, one line instead of a traceback."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"A request failed: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
