"""``openai:MODEL``: any endpoint of OpenAI's protocol for embeddings.

OPENAI_BASE_URL (default: OpenAI's own) and OPENAI_API_KEY are read from the environment.
"""

import base64
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.core.secrets import learn_value
from ray_backfill.encode.encoder import TEXT, Device, Encoder, ModelKind, tokens_in
from ray_backfill.encode.spec import Spec

_DEFAULT = "https://api.openai.com/v1"
# Answers after which the same request may succeed.
_AGAIN = (408, 409, 429, 500, 502, 503, 504)
# What servers say of texts or batches that are too large, by status; an error 500 may have other causes.
_TOO_LONG = dict.fromkeys((400, 413, 422), "length|token|too (long|large|many)|batch size") | {500: "too (long|large)"}
_TRIES, _FIRST_WAIT_S, _LONGEST_WAIT_S, _TIMEOUT_S = 8, 0.5, 60.0, 120.0
# Characters of a text that are sent: more than the 8,192 tokens that OpenAI's models read.
_MOST_CHARACTERS, _FEWEST_CHARACTERS = 24_000, 100


class _TooLongError(InputError):
    """A request has more tokens than the service takes."""


class OpenAi:
    """An endpoint. Requests of one process follow each other."""

    batch, has_prompts = 128, False

    def __init__(self, spec: Spec, device: Device) -> None:
        self._url = (os.environ.get("OPENAI_BASE_URL") or _DEFAULT).rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise InputError(f"OPENAI_BASE_URL is {self._url}; it must begin with http:// or https://")
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        learn_value(key)
        if not key.isascii() or not key.isprintable():
            raise InputError("OPENAI_API_KEY holds characters that no key has; export it again")
        if not key and self._url == _DEFAULT:
            raise InputError(
                f"{spec} needs a key: export OPENAI_API_KEY, or OPENAI_BASE_URL of an endpoint without keys"
            )
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._spec, self._processes = spec, device.processes
        self._next_s, self.tokens = 0.0, 0

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        return items

    def __call__(self, prepared: Any, side: str) -> Any:
        texts = [text[: _most_characters(self._spec)] for text in prepared]
        body: dict[str, Any] = {"model": self._spec.name, "input": texts}
        if self._spec.dims:
            body["dimensions"] = self._spec.dims
        try:
            answer = self._asked(body)
        except _TooLongError:
            if len(texts) > 1:
                return np.concatenate([self(half, side) for half in (texts[::2], texts[1::2])])[_unzipped(len(texts))]
            if len(texts[0]) < _FEWEST_CHARACTERS:
                raise
            return self([texts[0][: len(texts[0]) // 2]], side)
        data = sorted(answer.get("data", []), key=lambda each: int(each.get("index", 0)))
        if len(data) != len(texts):
            raise InputError(f"{self._url} returned {len(data)} vectors for {len(texts)} texts")
        return np.stack([_vector(each["embedding"]) for each in data])

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, which is repeated while the service is busy."""
        why = ""
        for number in range(_TRIES):
            self._wait_for_turn()
            request = urllib.request.Request(f"{self._url}/embeddings", json.dumps(body).encode(), self._headers)
            wait_s = min(_FIRST_WAIT_S * 2**number, _LONGEST_WAIT_S)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                    found = dict(json.loads(answer.read()))
                if found.get("data"):
                    self._count(found, body["input"])
                    return found
                why = f"200 without vectors {_said(found)}".strip()
            except urllib.error.HTTPError as error:
                why = f"{error.code} {error.reason} {_told(error)}".strip()
                is_long = re.search(_TOO_LONG.get(error.code, "^$"), why, re.IGNORECASE)
                if is_long or error.code not in _AGAIN:
                    kind = _TooLongError if is_long else InputError
                    raise kind(f"{self._url} refused {self._spec}: {why}") from error
                wait_s = _asked_wait(error.headers.get("Retry-After")) or wait_s
            except (OSError, ValueError, http.client.HTTPException) as error:  # no answer, or half of one
                why = f"{type(error).__name__}: {getattr(error, 'reason', error)}"
            time.sleep(wait_s if number + 1 < _TRIES else 0)
        raise InputError(f"{self._url} did not answer in {_TRIES} tries ({why}); run the same command again later")

    def _wait_for_turn(self) -> None:
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + (60 * self._processes / self._spec.rpm if self._spec.rpm else 0)

    def _count(self, answer: dict[str, Any], texts: list[str]) -> None:
        """Note the tokens that the service has read, and wait as long as they take of the limit."""
        usage = answer.get("usage")
        used = int((usage if isinstance(usage, dict) else {}).get("total_tokens") or tokens_in(sum(map(len, texts))))
        self.tokens += used
        if self._spec.tpm:
            self._next_s = max(self._next_s, time.monotonic() + 60 * self._processes * used / self._spec.tpm)

    def identity(self) -> dict[str, Any]:
        return {"endpoint": self._url, "model": self._spec.name, "length": self._spec.tokens}


def _most_characters(spec: Spec) -> int:
    """Characters of a text that are sent."""
    return 3 * spec.tokens or _MOST_CHARACTERS


def _unzipped(number: int) -> Any:
    """Where each text is, if those at even places come first."""
    return np.argsort(np.concatenate([np.arange(0, number, 2), np.arange(1, number, 2)]))


def _vector(given: Any) -> Any:
    """Numbers, or their bytes in base64."""
    return np.frombuffer(base64.b64decode(given), np.float32) if isinstance(given, str) else np.asarray(given)


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return _said(json.loads(error.read()))
    except (ValueError, OSError, http.client.HTTPException):
        return ""


def _said(answer: Any) -> str:
    """The message of an answer: OpenAI puts it into error.message, other servers beside or without it."""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and answer.get(name):
            return _said(answer[name])
    return f"({str(answer)[:200]})" if answer and not isinstance(answer, dict) else ""


def _asked_wait(header: str | None) -> float:
    try:
        return min(float(header or 0), _LONGEST_WAIT_S)
    except ValueError:
        return 0.0


def _load(spec: Spec, modality: str, device: Device) -> Encoder:
    return OpenAi(spec, device)


MODELS = (
    ModelKind(
        "openai", (TEXT,), "openai:MODEL", "Any endpoint of OpenAI's protocol: OPENAI_BASE_URL and OPENAI_API_KEY.",
        _load, ("rpm", "tpm", "price", "tokens"), reads=_most_characters,
    ),
)  # fmt: skip
