"""Captions against a server that answers like /v1/chat/completions, well and badly."""

from __future__ import annotations

import base64
import http.server
import io
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kinema4d.data.annotate.caption import ENVIRONMENT_PROMPT, EPISODE_PROMPT, Captioner
from kinema4d.data.annotate.stages import CAPTIONS, RECORD, annotate

KEY = "sk-very-secret"


def reply(text: object) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


class Server(http.server.ThreadingHTTPServer):
    """Gives the planned answers in turn, the last one for ever, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        self.asked: list[tuple[str, dict[str, str], dict]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def plan(self, *answers) -> None:
        self.answers = [(*a, {}) if len(a) == 2 else a for a in answers]


class Handler(http.server.BaseHTTPRequestHandler):
    @property
    def mine(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.mine.asked.append((self.path, dict(self.headers), body))
        code, content, headers = self.mine.answers.pop(0) if len(self.mine.answers) > 1 else self.mine.answers[0]
        if code == 0:  # a line that goes dead
            time.sleep(0.5)
            return
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.mine.asked.append(("GET " + self.path, dict(self.headers), {}))
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("MY_KEY", KEY)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def captioner(server: Server, **options) -> Captioner:
    return Captioner(base_url=server.url, model="a-model", **{"key_env": "MY_KEY", "backoff_s": 0.01, **options})


def images(body: dict) -> list[np.ndarray]:
    urls = [part["image_url"]["url"] for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    assert all(u.startswith("data:image/jpeg;base64,") for u in urls)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(u.split(",")[1])))) for u in urls]


def test_two_texts_with_the_right_frames_and_no_key_in_the_record(server, truth):
    server.plan((200, reply(" The arm pushes a box. ")), (200, reply("A table with boxes.")))
    found = annotate(truth.episode, text=captioner(server, frames=3))
    assert found.facts[CAPTIONS] == {"episode": "The arm pushes a box.", "environment": "A table with boxes."}
    assert found.text == "push the red box"
    (path, headers, first), (_, _, second) = server.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert first["model"] == "a-model"
    told = first["messages"][0]["content"][0]["text"]
    assert told.startswith(EPISODE_PROMPT)
    assert "push the red box" in told
    assert second["messages"][0]["content"][0]["text"] == ENVIRONMENT_PROMPT
    shown = images(first)
    assert len(shown) == 3
    for image, index in zip(shown, (0, 4, 7), strict=True):
        assert image.shape == truth.episode.clip.rgb[0].shape
        assert np.abs(image.astype(int) - truth.episode.clip.rgb[index]).mean() < 4, f"frame {index} is another"
    assert len(images(second)) == 1
    assert np.abs(images(second)[0].astype(int) - truth.episode.clip.rgb[0]).mean() < 4
    record = json.dumps(found.facts[RECORD])
    assert "MY_KEY" in record
    assert KEY not in record


def test_busy_servers_are_asked_again(server, truth):
    server.plan((429, b"{}", {"Retry-After": "0.05"}), (503, b"busy"), (500, b""), (200, reply("At last.")))
    began = time.monotonic()
    assert captioner(server)(truth.episode)["episode"] == "At last."
    assert time.monotonic() - began > 0.05
    assert len(server.asked) == 5
    server.asked.clear()
    server.plan((429, b'{"error": {"message": "slow down", "type": "rate_limit"}}'))
    with pytest.raises(ValueError, match=r"answered 429: slow down \(after 3 tries\)"):
        captioner(server, retries=2)(truth.episode)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (
            401,
            b'{"error": {"message": "Incorrect API key: sk-very-secret"}}',
            r"answered 401: Incorrect API key: \*\*\*",
        ),
        (404, b'{"error": "no such model"}', "answered 404: no such model"),
        (400, b"<html>bad</html>", "answered 400: <html>bad</html>"),
        (422, b'{"detail": "too many images"}', "answered 422: .*too many images"),
        (403, b"", "answered 403: Forbidden"),
    ],
)
def test_refusals_are_passed_on_at_once(server, truth, code, body, said):
    server.plan((code, body))
    with pytest.raises(ValueError, match=said) as error:
        captioner(server)(truth.episode)
    assert KEY not in str(error.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{ not json", "did not answer in JSON: '{ not json'"),
        (b'{"choices": []}', "choices\\[0\\].message.content is missing"),
        (b"[1, 2]", "choices\\[0\\].message.content is missing"),
        (reply(None), "empty caption"),
        (reply("  "), "empty caption"),
        (reply([{"type": "text"}]), "empty caption"),
    ],
)
def test_malformed_answers(server, truth, body, said):
    server.plan((200, body))
    with pytest.raises(ValueError, match=said):
        captioner(server)(truth.episode)


def test_silence_and_absence(server, truth):
    server.plan((0, b""))
    with pytest.raises(ValueError, match=r"cannot reach .*timed out \(after 2 tries\)"):
        captioner(server, timeout_s=0.1, retries=1)(truth.episode)
    closed = replace(captioner(server, retries=0), base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ValueError, match="cannot reach http://127.0.0.1:9/v1/chat/completions"):
        closed(truth.episode)


def test_the_key_does_not_follow_a_redirect(server, truth):
    server.plan((302, b"", {"Location": server.url + "/elsewhere"}))
    with pytest.raises(ValueError, match="answered 302"):
        captioner(server)(truth.episode)
    assert [path for path, _, _ in server.asked] == ["/v1/chat/completions"]


def test_bad_settings(server, truth, monkeypatch):
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ValueError, match="MY_KEY holds no API key"):
        captioner(server)(truth.episode)
    server.plan((200, reply("Without a key.")))
    assert captioner(server, key_env="")(truth.episode)["environment"] == "Without a key."
    assert all("Authorization" not in headers for _, headers, _ in server.asked)
    for url in ("localhost:8000/v1", "ftp://host/v1", "http:///v1", "https://host/v1?key=1"):
        with pytest.raises(ValueError, match="must look like https://host/v1"):
            Captioner(base_url=url, model="m")
    with pytest.raises(ValueError, match="must not hold a password"):
        Captioner(base_url="https://me:secret@host/v1", model="m")
    with pytest.raises(ValueError, match="at least one frame"):
        Captioner(base_url="https://host/v1", model="m", frames=0)
