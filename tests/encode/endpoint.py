"""A service on this machine that speaks OpenAI's protocol for embeddings."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tests.encode import _models


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers as told, one entry of ``plan`` a request; then with vectors."""

    plan: ClassVar[list[Any]] = []
    asked: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers.get("Authorization"), body))
        step = self.plan.pop(0) if self.plan else 200
        data = [
            {"index": i, "embedding": self.vector(body["model"], text)[: body.get("dimensions")]}
            for i, text in enumerate(body["input"])
        ]
        usage = {"total_tokens": sum(len(text.split()) for text in body["input"])}
        if isinstance(step, tuple):
            return self.answer(step[0], json.dumps(step[1]))
        answer = json.dumps(
            {"data": data[::-1], "usage": usage} if step in (200, "half") else {"error": {"message": "no"}}
        )
        if step == "long":
            answer = json.dumps({"error": {"message": "maximum context length is 8192 tokens"}})
        status = 400 if step == "long" else step if isinstance(step, int) else 200
        self.answer(status, answer, len(answer) // (2 if step == "half" else 1))

    def vector(self, model: str, text: str) -> list[float]:
        return [float(len(text)), 1.0]

    def answer(self, status: int, text: str, sent: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "0.01")
        self.end_headers()
        self.wfile.write(text[:sent].encode())

    def log_message(self, format: str, *arguments: Any) -> None: ...


class Words(Endpoint):
    """Counts hashed words: in 16 numbers if the model is a small one, otherwise in 32."""

    def vector(self, model: str, text: str) -> list[float]:
        return (_models.old if "small" in model else _models.wide)([text])[0].tolist()


@contextmanager
def serving(handler: type[Endpoint] = Words) -> Iterator[str]:
    """Yields its OPENAI_BASE_URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
