"""Keys: who may ask."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from hashlib import sha256

from lastword.errors import SettingError
from lastword.serve.api.invalid import WrongKey

SCHEME = "bearer"


class Keys:
    """The keys that open the server; where there are none, it is open."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        if isinstance(keys, str) or not all(isinstance(key, str) and key.strip() for key in keys):
            raise SettingError(
                "keys must be a list of texts, none of them empty: an empty key would let everybody in"
            )
        self._digests = [_digest(key.strip().encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, header: str | None) -> None:
        """Refuse a request whose `Authorization` header holds no key of ours.

        Every key is compared, and by its digest, so that the time taken says nothing of any.
        """
        if not self._digests:
            return
        scheme, _, given = (header or "").partition(" ")
        # A header's letters are the bytes that came, and a key is sent as UTF-8.
        found = _digest(given.strip(" \t").encode("latin-1", errors="replace"))
        fits = [hmac.compare_digest(found, digest) for digest in self._digests]
        if scheme.lower() != SCHEME or not any(fits):
            raise WrongKey(
                "this server asks for a key: send the header `Authorization: Bearer KEY`"
                if not given
                else "this is not a key of this server; ask its operator for one"
            )


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
