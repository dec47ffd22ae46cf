"""Captions of episodes through any server that speaks the chat-completions protocol of OpenAI (vLLM, Ollama, ...).

Two texts as in appendix B.2 of the paper: the whole episode, from frames across the clip; and the environment alone,
from the first frame. Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kinema4d.types import Episode

EPISODE_PROMPT = (
    "These images are frames of one video of a robot, in order of time. In two to four sentences, describe what happens: "
    "the robot, what it does step by step, which objects it touches, how they move, and how it ends, including a failure "
    "such as a miss, a slip or a collision. Describe only what can be seen. Plain text, no list."
)
"""Asks for the complete text: all dynamics of robot and world."""
ENVIRONMENT_PROMPT = (
    "This is the first frame of a video. In two to four sentences, describe the static environment only: the place, the "
    "surfaces, the objects with colours, materials and positions relative to each other, and the light. Do not mention "
    "the robot, people, or anything that might happen. Plain text, no list."
)
"""Asks for the environment-centric text: the static scene at the start."""
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that may be better next time."""
LONGEST_WAIT_S = 60.0
"""Most that is waited between two tries, whatever the server asks for."""


@dataclass(frozen=True, kw_only=True)
class Captioner:
    """Writes ``episode`` and ``environment`` captions with a vision-language model."""

    base_url: str
    """Up to and including the version, such as ``http://localhost:8000/v1``."""
    model: str
    """Name that the server knows."""
    key_env: str = ""
    """Environment variable that holds the API key; empty sends none. The key itself is stored nowhere."""
    frames: int = 8
    """Frames shown for the episode's caption, from first to last."""
    side_px: int = 512
    """Longer side of the images sent; smaller ones stay as they are."""
    max_tokens: int = 400
    """Longest answer."""
    timeout_s: float = 120.0
    """Longest wait for one answer."""
    retries: int = 4
    """Further tries after 408, 429, 5xx and lost connections."""
    backoff_s: float = 1.0
    """Wait before the first further try; doubles each time, unless the server says ``Retry-After``."""

    def __post_init__(self) -> None:
        url = urllib.parse.urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query:
            raise ValueError(f"the captions URL must look like https://host/v1, got {self.base_url!r}")
        if "@" in url.netloc:
            raise ValueError("the captions URL must not hold a password; put the key in an environment variable")
        if self.frames < 1 or self.retries < 0 or not self.model:
            raise ValueError(f"captions need a model and at least one frame, got {self.model!r} and {self.frames}")

    def prepare(self) -> None:
        """Look for the key; ``ValueError`` where it is missing."""
        self._key()

    def __call__(self, episode: Episode, /) -> dict[str, str]:
        """Both captions."""
        rgb = episode.clip.rgb
        picked = np.unique(np.rint(np.linspace(0, len(rgb) - 1, self.frames)).astype(int))
        told = f' The robot was told: "{episode.text}".' if episode.text else ""
        return {
            "episode": self.ask(EPISODE_PROMPT + told, rgb[picked]),
            "environment": self.ask(ENVIRONMENT_PROMPT, rgb[:1]),
        }

    def ask(self, prompt: str, images: UInt8[np.ndarray, "n h w 3"]) -> str:
        """One answer to a prompt with images; ``ValueError`` says what went wrong."""
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        content += [{"type": "image_url", "image_url": {"url": _data_url(i, self.side_px)}} for i in images]
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
        }
        return _answer(self._post(json.dumps(body).encode()), self.base_url)

    def _post(self, body: bytes) -> bytes:
        url = self.base_url.rstrip("/") + "/chat/completions"
        key = self._key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # Redirects are not followed: they would carry the key to another host.
        opener = urllib.request.build_opener(_NoRedirect)
        problem = ""
        for attempt in range(self.retries + 1):
            wait = self.backoff_s * 2**attempt
            request = urllib.request.Request(url, data=body, headers=headers, method="POST")
            try:
                with opener.open(request, timeout=self.timeout_s) as response:
                    return response.read()
            except urllib.error.HTTPError as error:
                problem = f"{url} answered {error.code}: {_message(error, key)}"
                if error.code not in RETRIED:
                    raise ValueError(problem) from None
                wait = _seconds(error.headers.get("Retry-After"), wait)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                reason = getattr(error, "reason", None) or error
                problem = f"cannot reach {url}: {str(reason) or type(reason).__name__}"
            if attempt < self.retries:
                time.sleep(min(wait, LONGEST_WAIT_S))
        raise ValueError(f"{problem} (after {self.retries + 1} tries)")

    def _key(self) -> str:
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise ValueError(f"the environment variable {self.key_env} holds no API key; export it first")
        return key


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into the error that it is here."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        """None makes urllib raise the redirect as an HTTPError."""


def _data_url(image: UInt8[np.ndarray, "h w 3"], side_px: int) -> str:
    picture = Image.fromarray(image)
    picture.thumbnail((side_px, side_px))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _answer(raw: bytes, where: str) -> str:
    try:
        reply = json.loads(raw)
        text = reply["choices"][0]["message"]["content"]
    except ValueError:
        raise ValueError(f"{where} did not answer in JSON: {raw[:200].decode(errors='replace')!r}") from None
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            f"{where} did not answer like /v1/chat/completions (choices[0].message.content is missing): "
            f"{raw[:200].decode(errors='replace')!r}"
        ) from None
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where} gave an empty caption; a model that thinks first may need more max_tokens")
    return text.strip()


def _message(error: urllib.error.HTTPError, key: str) -> str:
    """What the body says, without the key, which some servers repeat."""
    try:
        body = error.read(20_000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        body = ""
    said: Any = body
    try:
        parsed = json.loads(body)
        said = parsed["error"] if isinstance(parsed, dict) and "error" in parsed else parsed
        said = said["message"] if isinstance(said, dict) and "message" in said else said
    except ValueError:
        pass
    text = str(said).strip()[:500] or error.reason
    return text.replace(key, "***") if key else text


def _seconds(header: str | None, otherwise: float) -> float:
    """``Retry-After`` in seconds; dates are left to the own rhythm."""
    try:
        return max(0.0, float(header)) if header is not None else otherwise
    except ValueError:
        return otherwise
