"""``openai:MODEL``: any endpoint of OpenAI's protocol for embeddings.

OPENAI_BASE_URL (default: OpenAI's own) and OPENAI_API_KEY are read from the environment.
"""

import base64
import json
import os
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.secrets import learn, learn_value
from ray_backfill.encode.encoder import TEXT, Device, ModelKind, tokens_in
from ray_backfill.encode.spec import Spec

_DEFAULT = "https://api.openai.com/v1"
# Answers after which the same request may succeed.
_AGAIN = (408, 409, 429, 500, 502, 503, 504)
# What servers say of texts or batches that are too large, by status; an error 500 may have other causes.
_TOO_LONG = dict.fromkeys((400, 413, 422), "length|token|too (long|large|many)|batch size") | {500: "too (long|large)"}
_TRIES, _FIRST_WAIT_S, _LONGEST_WAIT_S = 8, 0.5, 60.0
# Seconds from the start of a request to the end of its answer, and bytes of an answer for each text.
_TIMEOUT_S, _MOST_BYTES = 120.0, 1 << 20
# Characters of a text that are sent: more than the 8,192 tokens that OpenAI's models read.
_MOST_CHARACTERS, _FEWEST_CHARACTERS = 24_000, 100


class _TooLongError(InputError):
    """A request has more tokens than the service takes."""


class _BusyError(Exception):
    """The same request may succeed later. Its arguments: why it failed, and seconds that the service asked to wait."""


class OpenAi:
    """An endpoint. Requests of one process follow each other."""

    batch, has_prompts = 128, False

    def __init__(self, spec: Spec, device: Device) -> None:
        import httpx
        import tenacity  # noqa: F401  if it is missing, that is said before anything is asked

        self._url = (os.environ.get("OPENAI_BASE_URL") or _DEFAULT).rstrip("/")
        learn(self._url)
        if not self._url.startswith(("http://", "https://")):
            raise InputError(f"OPENAI_BASE_URL is {self._url}; it must begin with http:// or https://")
        try:
            has_password, self._tls = bool(httpx.URL(self._url).userinfo), httpx.create_ssl_context()
            httpx.AsyncClient(verify=self._tls)  # reads the proxies of the environment
        except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
            why = f"{self._url}, or a proxy or SSL_CERT_FILE of the environment, cannot be used: {error}"
            raise InputError(f"{why}; export it again") from error
        if has_password:  # it would take the place of the key
            raise InputError("OPENAI_BASE_URL holds a user or a password; take them out and export OPENAI_API_KEY")
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
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

        texts = [text[: _most_characters(self._spec)] for text in prepared]
        body: dict[str, Any] = {"model": self._spec.name, "input": texts}
        if self._spec.dims:
            body["dimensions"] = self._spec.dims
        busy = retry_if_exception_type(_BusyError)
        tries = Retrying(stop=stop_after_attempt(_TRIES), retry=busy, wait=_pause, sleep=time.sleep, reraise=True)
        try:
            rows = tries(self._answer, body)
        except _BusyError as error:
            why = f"{self._url} did not answer in {_TRIES} tries ({error.args[0]})"
            raise InputError(f"{why}; run the same command again later") from error
        except _TooLongError:
            if len(texts) > 1:
                half = -(-len(texts) // 2)
                return np.concatenate([self(texts[:half], side), self(texts[half:], side)])
            if len(texts[0]) < _FEWEST_CHARACTERS:
                raise
            return self([texts[0][: len(texts[0]) // 2]], side)
        try:
            return _vectors(rows, len(texts))
        except ValueError as error:
            why = f"{self._url} returned {error} for {self._spec}"
            raise InputError(f"{why}; export OPENAI_BASE_URL of a service that keeps to OpenAI's protocol") from error

    def _answer(self, body: dict[str, Any]) -> Any:
        """The data of the answer to one request. Raises _BusyError if another may succeed, otherwise InputError."""
        import httpx
        from anyio.from_thread import start_blocking_portal

        time.sleep(max(0.0, self._next_s - time.monotonic()))  # its turn
        self._next_s = time.monotonic() + (60 * self._processes / self._spec.rpm if self._spec.rpm else 0)
        try:
            with start_blocking_portal() as portal:  # a thread: in notebooks this one has a loop already
                answer, content = portal.call(self._sent, json.dumps(body).encode(), len(body["input"]))
        except (httpx.RequestError, TimeoutError) as error:
            raise _BusyError(f"{type(error).__name__} within {_TIMEOUT_S:g} s: {error}", 0.0) from error
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            said = None
        if answer.is_success and isinstance(said, dict) and said.get("data"):
            self._count(said, body["input"])
            return said["data"]
        if to := answer.next_request:
            place = str(to.url.copy_with(userinfo=b"", query=None, fragment=None)).removesuffix("/embeddings")
            why = f"{self._url} redirects to {place} ({answer.status_code}), where the key was not sent"
            raise InputError(f"{why}; export OPENAI_BASE_URL as the address of the service itself")
        reason = "without vectors" if answer.is_success else answer.reason_phrase
        why = f"{answer.status_code} {reason} {_said(said)}".strip()
        is_long = re.search(_TOO_LONG.get(answer.status_code, "^$"), why, re.IGNORECASE)
        if is_long or not (answer.is_success or answer.status_code in _AGAIN):
            kind = _TooLongError if is_long else InputError
            raise kind(f"{self._url} refused {self._spec}: {why}; check its name, the key and OPENAI_BASE_URL")
        raise _BusyError(why, _asked_wait(answer.headers.get("Retry-After")))

    async def _sent(self, content: bytes, texts: int) -> tuple[Any, bytearray]:
        """The httpx.Response to one request, and its body. Redirects are not followed."""
        import httpx
        from anyio import fail_after

        body, most, headers = bytearray(), _MOST_BYTES * (texts + 1), self._headers | {"Accept-Encoding": "identity"}
        with fail_after(_TIMEOUT_S):  # httpx's own limits are of each read
            async with (
                httpx.AsyncClient(verify=self._tls, timeout=None) as client,
                client.stream("POST", f"{self._url}/embeddings", content=content, headers=headers) as answer,
            ):
                async for piece in answer.aiter_raw():  # as sent: nothing is unpacked
                    body += piece
                    if len(body) > most:
                        why = f"{self._url} answers with more than {most >> 20} MiB for {texts} texts"
                        raise InputError(f"{why}; export another OPENAI_BASE_URL, or lower dims")
        return answer, body

    def _count(self, answer: dict[str, Any], texts: list[str]) -> None:
        """Note the tokens that the service has read, and wait as long as they take of the limit."""
        usage, characters = answer.get("usage"), sum(map(len, texts))
        used = usage.get("total_tokens") if isinstance(usage, dict) else None
        if type(used) is not int or not 0 < used <= 8 * characters + 10_000 * len(texts):
            used = tokens_in(characters)  # the answer is paid for and holds vectors: it counts
        self.tokens += used
        if self._spec.tpm:
            self._next_s = max(self._next_s, time.monotonic() + 60 * self._processes * used / self._spec.tpm)

    def identity(self) -> dict[str, Any]:
        return {"endpoint": self._url, "model": self._spec.name, "length": self._spec.tokens}


def _most_characters(spec: Spec) -> int:
    """Characters of a text that are sent."""
    return 3 * spec.tokens or _MOST_CHARACTERS


def _vectors(rows: Any, number: int) -> NDArray[np.float32]:
    """(B, d) vectors in the order of the texts. Raises ValueError unless there is one for each, all of one width."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no list of vectors")
    if len(rows) != number:
        raise ValueError(f"{len(rows)} vectors for {number} texts")
    places = [row.get("index") for row in rows]
    if places == [None] * number:  # some servers leave them out
        places = list(range(number))
    if any(type(place) is not int for place in places) or sorted(places) != list(range(number)):
        raise ValueError(f"the indexes {str(places)[:60]} instead of each of 0 to {number - 1} once")
    vectors = [_vector(row.get("embedding")) for row in rows]
    if len(shapes := {vector.shape for vector in vectors}) > 1 or vectors[0].ndim != 1:
        raise ValueError(f"vectors of the shapes {' and '.join(map(str, sorted(shapes)))[:60]} instead of one width")
    return np.stack(vectors)[np.argsort(places)]


def _vector(given: Any) -> NDArray[np.float32]:
    """Numbers, or their bytes in base64. Raises ValueError for anything else."""
    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given, validate=True), "<f4").astype(np.float32)
    if (found := np.asarray(given)).dtype.kind not in "iuf":
        raise ValueError(f"{str(given)[:60]} instead of numbers")
    with np.errstate(over="ignore"):  # infinite values are refused with the name of the item
        return found.astype(np.float32)


def _said(answer: Any) -> str:
    """The message of an answer: OpenAI puts it into error.message, other servers beside or without it."""
    while isinstance(answer, dict):
        answer = next((answer[name] for name in ("error", "message", "detail") if answer.get(name)), None)
    return f"({' '.join(str(answer).split())[:200]})" if answer else ""


def _pause(state: Any) -> float:
    """Seconds until the next try. state: of tenacity."""
    _, asked_s = state.outcome.exception().args
    return asked_s or min(_FIRST_WAIT_S * 2 ** (state.attempt_number - 1), _LONGEST_WAIT_S)


def _asked_wait(header: str | None) -> float:
    """Seconds of a Retry-After, which is a number or a date, up to the longest pause; 0 for anything else."""
    try:
        seconds = float(header or 0)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header or "").astimezone() - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return 0.0
    return min(seconds, _LONGEST_WAIT_S) if seconds > 0 else 0.0  # NaN is not


MODELS = (
    ModelKind(
        "openai", (TEXT,), "openai:MODEL", "Any endpoint of OpenAI's protocol: OPENAI_BASE_URL and OPENAI_API_KEY.",
        lambda spec, modality, device: OpenAi(spec, device), ("rpm", "tpm", "price", "tokens"), "httpx tenacity",
        reads=_most_characters, batch=OpenAi.batch,
    ),
)  # fmt: skip
