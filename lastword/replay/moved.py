"""Where the slots of a canvas were before its length was changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_INSERTED = 64  # slots that are looked for where the canvas did not grow by as many


def moved(
    old: Sequence[int], new: Sequence[int], mask: int, wrote: Sequence[bool] | None = None
) -> list[int | None]:
    """For each slot of the new answer, the slot it was in the old one; None: it is new.

    A canvas is cut at its end, grows at its end, or gets masks in one place (Daedal), after what the pass
    chose was written. `wrote` says which old slots that were. Where no such move explains the new answer,
    as after a hook that rewrites it, slots are taken to have stayed.
    """
    grown = max(0, len(new) - len(old))
    for count in dict.fromkeys((grown, *range(min(MOST_INSERTED, len(new)) + 1))):
        place = _inserted(old, new, mask, wrote, count)
        if place is not None:
            break
    else:
        place, count = 0, 0
    slots = [*range(place), *([None] * count), *range(place, len(new) - count)]
    return [None if slot is None or slot >= len(old) else slot for slot in slots]


def _inserted(
    old: Sequence[int], new: Sequence[int], mask: int, wrote: Sequence[bool] | None, count: int
) -> int | None:
    """Before which slot `count` masks were put, if that explains the new answer."""
    # What every old slot must hold now: its token; where it was a mask, a token (True) or a mask (False).
    held = list[int | bool | None](old)
    for slot, token in enumerate(old):
        if token == mask:
            held[slot] = None if wrote is None or slot >= len(wrote) else wrote[slot]
    stayed = _leading(_same(one, token, mask) for one, token in zip(held, new))
    if not count:
        return stayed if stayed == min(len(old), len(new)) else None
    last = min(len(old), len(new) - count)
    behind = zip(reversed(held[:last]), reversed(new[count : count + last]))
    shifted = last - _leading(_same(one, token, mask) for one, token in behind)
    for place in range(min(stayed, last), shifted - 1, -1):
        if all(token == mask for token in new[place : place + count]):
            return place
    return None


def _same(held: int | bool | None, token: int, mask: int) -> bool:
    if isinstance(held, bool):
        return held == (token != mask)
    return held is None or held == token


def _leading(answers: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    found = 0
    for answer in answers:
        if not answer:
            break
        found += 1
    return found
