"""Nothing of one request reaches another."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx

import lastword

MARKS = ["abc", "mno", "xyz", "qrs", "hij", "uvw", "klm", "efg"]


def test_nothing_of_one_request_reaches_another(live_toy, toy):
    """Every prompt decides its answer's every letter, so that a stranger's would show."""
    alone = {mark: lastword.generate(toy, mark, length="fixed:12").text for mark in MARKS}
    assert len(set(alone.values())) == len(MARKS)

    def ask(number):
        mark, other = MARKS[number % len(MARKS)], MARKS[(number + 3) % len(MARKS)]
        body = {
            "model": "toy",
            "prompt": [mark, other],
            "length": "fixed:12",
            "user": f"user{number}",
            "stop": f"stop{number}",
            "stream": number % 3 == 0,
            "diffusing": number % 6 == 0,
        }
        reply = client.post("/v1/completions", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        if not body["stream"]:
            return number, reply.text, [choice["text"] for choice in reply.json()["choices"]]
        texts = ["", ""]
        for line in reply.text.split("\n\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    before = "" if body["diffusing"] else texts[choice["index"]]
                    texts[choice["index"]] = before + choice["text"]
        return number, reply.text, texts

    with httpx.Client(base_url=live_toy.url) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(24)))
    ids = set()
    for number, raw, texts in answers:
        expected = [alone[MARKS[number % len(MARKS)]], alone[MARKS[(number + 3) % len(MARKS)]]]
        assert texts == expected
        assert "user" not in raw  # not even its own
        assert "stop1" not in raw
        ids.add(raw[raw.index("cmpl-") :][:37])
    assert len(ids) == len(answers)
