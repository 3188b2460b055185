"""With a model configured, a sample talks to that one and not to its script: here a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.samples.conftest import SAMPLES

REPLY = '{"name": "Rani ki Vav", "storeys": 7}'


class Model(BaseHTTPRequestHandler):
    """Speaks just enough Chat Completions."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "loopback", "choices": [choice]}
        sent = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test tells what went wrong."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Listening", (Model,), {"asked": asked})) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/v1", asked
        listening.shutdown()
        thread.join()


def test_a_configured_model_is_asked_in_place_of_the_script(
    server: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, asked = server
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SAMPLES / "13_structured_output.py")],
        cwd=tmp_path,
        env={**os.environ, "OPENAI_BASE_URL": url, "OPENAI_MODEL": "loopback"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "Rani ki Vav has 7 storeys\n"
    assert "(using the model 'loopback')" in done.stderr
    [request] = asked
    assert request["messages"][-1]["content"] == "Tell me about Chand Baori."
