"""A server that answers the page as ours does, in threads and with nothing but the standard library."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import lastword
from lastword.serve.app import render_page
from lastword.viz.frames import BatchTrace, Frame

PAUSE = 0.01  # seconds a pass takes at least, for a browser to see it


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's model; a prompt that holds `REFUSE` gets an error, `BREAK` one mid-stream."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        if self.path == "/":
            return self.reply(200, render_page(), "text/html; charset=utf-8")
        if self.locked():
            return None
        own = {"slots": self.server.model.default_max_new_tokens}
        if self.server.chat is not None:
            own["chat"] = self.server.chat
        return self.reply(200, {"data": [{"id": self.server.name, "lastword": own}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        if self.locked():
            return None
        if self.path == "/v1/lengths":
            return self.lengths(body)
        prompt = self.prompt(body)
        if "messages" in body and not self.server.chat:
            said = {"message": "this model has no chat template", "code": "no_chat_template"}
            return self.reply(400, {"error": said})
        if "REFUSE" in json.dumps(prompt):
            said = {"message": "max_tokens is 0; give a whole number from 1 on", "code": "bad"}
            return self.reply(400, {"error": said})
        return self.stream(body, prompt)

    def locked(self):
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.reply(401, {"error": {"message": "this server asks for a key", "code": "no_key"}})
            return True
        return False

    def prompt(self, body):
        return body["messages"] if self.path.endswith("chat/completions") else body["prompt"]

    def lengths(self, body):
        prompt = "abc" if self.server.spells else body.get("messages") or body["prompt"]
        found = lastword.predict_length(self.server.model, prompt)
        curve = found.survival.tolist()
        self.reply(200, {"mean": found.mean.item(), "curve": curve, "tail": found.tail.item()})

    def stream(self, body, prompt):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        model, began = self.server.model, time.perf_counter()
        asked = json.dumps(prompt)
        if self.server.spells:  # the toy reads letters only
            prompt = "abc"
        choices = {key: body[key] for key in ("recipe", "length") if key in body}
        traces, last = BatchTrace(model.tokenizer, model.ids), Frame(0, (), (), (), (), "", 0)

        def show(step):
            nonlocal last
            for _, frame in traces.of(step):
                last = respelled(frame, self.server.words) if self.server.words else frame
                self.frame(last)
                time.sleep(PAUSE)
                if "BREAK" in asked and frame.forward_passes == 2:
                    raise Broken

        try:
            answer = lastword.generate(model, prompt, on_step=show, **choices)
        except Broken:
            said = {"message": "decoding this answer failed; ask again", "code": "broken"}
            return self.event({"error": said})
        except OSError:
            return self.server.left.append(last.forward_passes)  # the reader has gone
        passes = answer.cost.forward_passes + answer.probe_cost.forward_passes
        ledger = {
            "predicted_length": answer.to_data()["expected_length"],
            "horizon": answer.horizon,
            "passes": passes,
            "columns": answer.cost.tokens_computed + answer.probe_cost.tokens_computed,
            "tokens_per_forward": len(answer.tokens) / passes,
            "seconds_queued": 0.0,
            "seconds_decoding": time.perf_counter() - began,
            "ended_by": "model" if answer.finish.name == "ENDED" else "canvas",
        }
        reason = "stop" if answer.finish.name == "ENDED" else "length"
        self.choice(ledger, last.text, reason)
        self.event({"choices": [], "usage": {"completion_tokens": len(answer.tokens)}})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def frame(self, frame):
        pairs = zip(frame.tokens, frame.texts)
        told = {
            "passes": frame.passes,
            "columns": frame.columns,
            "end": frame.end,
            "texts": [None if token is None else text for token, text in pairs],
            "fixed": frame.filled_at,
            "confidence": frame.confidence,
        }
        self.choice({"frame": told, "horizon": len(frame.tokens)}, frame.text)

    def choice(self, told, text="", finish=None):
        chat = self.path.endswith("chat/completions")
        said = {"delta": {"content": text}} if chat else {"text": text}
        self.event({"choices": [{"index": 0, **said, "finish_reason": finish, "lastword": told}]})

    def event(self, chunk):
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def reply(self, status, data, kind="application/json"):
        text = data if isinstance(data, str) else json.dumps(data)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


def respelled(frame, words):
    """The same frame with other texts, as of a model that says these words."""
    said = [words[slot % len(words)] for slot in range(len(frame.texts))]
    texts = tuple(word if text else "" for word, text in zip(said, frame.texts))
    return replace(frame, texts=texts, text="".join(said[: len(frame.text)]))


class Broken(Exception):
    """Decoding failed."""


@contextmanager
def stub(name="toy", *, chat=True, key=None, words=None):
    """A running server; its `asked` keeps what was posted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.model, server.name, server.chat, server.key = lastword.load(name), name, chat, key
    server.asked, server.left, server.words = [], [], words
    server.spells = name == "toy"
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
