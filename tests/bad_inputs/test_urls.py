"""URLs of servers that cannot be used: each is refused with a sentence, before a connection is opened."""

import pytest

from lastword.engines.openai import OpenAIEngine
from lastword.errors import SettingError
from lastword.validation import check_url

MALFORMED = [
    "http://[::1", "http://[::1]x:80", "http://[zz]/", "http://host:notaport", "http://host:99999", "http://host:-1",
    "http://host:0", "http://host:80:80", "http://host:8\u0660", "ftp://host", "file:///etc/passwd", "ws://host",
    "unix:///x", "javascript:1", "http://", "https://", "http:///v1", "http://:8000", "http:host", "HTTP:/host",
    "http//host", "host:8000", "//host", "", "  ", "http:// host", "http://ho st/v1", "http://host\n", "http://host\\x",
    "http://\t", "http://h\u00f6st", "http://host?x=1", "http://host/v1?key=sk", "http://host/#a", "http://@host",
    "http://user:secret@host/v1", "http://secret@host", "http://[v1.x]:a", "http://a@b@host", "http://host/\x00",
]  # fmt: skip
WRONG_TYPES = [None, 3, b"http://host", ["http://host"]]
VALID = [
    "http://127.0.0.1:8000/v1",
    "https://host",
    "http://[::1]:8000",
    "HTTP://Host:80/a/b",
    "http://my_host.a:1/v1/",
]


@pytest.mark.parametrize("url", [*MALFORMED, *WRONG_TYPES], ids=repr)
def test_the_engine_refuses_it(url):
    with pytest.raises(SettingError) as refused:
        OpenAIEngine(url, "toy")
    message = str(refused.value)
    assert "--base-url" in message
    assert "such as http://127.0.0.1:8000/v1" in message or "must be text" in message
    assert "secret" not in message
    assert "\n" not in message


@pytest.mark.parametrize("url", VALID)
def test_a_usable_url_is_accepted(url):
    check_url("--base-url", url)
