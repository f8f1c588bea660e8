"""RankGroup: a model larger than one card, split over actors of a Ray cluster, one rank an actor.

Whatever is asked of the group is asked of every rank, since they compute each pass together; the first one's
answer is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

from lastword.engines.base import GenerationReply, GenerationRequest, Key
from lastword.engines.local import QUEUE_FACTOR, LocalEngine
from lastword.errors import ExtraError, LastwordError, RankError, SettingError
from lastword.extras import install
from lastword.models.load import load
from lastword.models.ranks import BACKENDS, MOST_RANKS
from lastword.recipe.recipe import Recipe
from lastword.validation import check_choice, check_int, check_number, check_type


class RankGroup:
    """An engine of `parallel` actors in the cluster that ray.init has connected to.

    A placement group holds a card for each on "cuda", a CPU on "cpu"; `timeout` is how many seconds to wait
    for them, and for a rank in a pass. A rank that dies takes the group with it: make another one and ask
    again.
    """

    def __init__(
        self,
        name: str,
        *,
        parallel: int,
        device: Literal["cpu", "cuda"] = "cuda",
        dtype: str = "auto",
        timeout: int | float = 600,
    ) -> None:
        check_type("RankGroup", "name", name, str, "the name or folder of a model")
        check_int("RankGroup", "parallel", parallel, minimum=2, maximum=MOST_RANKS)
        check_choice("RankGroup", "device", device, *BACKENDS)
        check_number("RankGroup", "timeout", timeout, above=0)
        self._ray, self._actors, self._placement = _connected(), list[Any](), None
        try:
            self._start(parallel, device, timeout)
            meeting = self._all([self._actors[0].opens.remote(parallel)])
            given = (name, device, dtype, parallel, meeting, timeout)
            self._all([actor.joins.remote(rank, *given) for rank, actor in enumerate(self._actors)])
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """What `function(model, *given)` returns in the first rank; every rank calls it.

        It must do the same in each of them, and be a function that a file of theirs has.
        """
        if not self._actors:
            raise RankError("this group of ranks has ended; make another one")
        return self._all([actor.calls.remote(function, given) for actor in self._actors])

    def generate(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[list[GenerationReply[Key]]]:
        """Replies batch by batch, shortest prompts first."""
        order = sorted(requests, key=lambda key: len(requests[key].prompt_ids))
        for first in range(0, len(order), max_batch_size * QUEUE_FACTOR):
            batch = {key: requests[key] for key in order[first : first + max_batch_size * QUEUE_FACTOR]}
            yield self.call(_generate, batch, recipe, max_batch_size)

    def close(self) -> None:
        """End the actors, and give back what they held."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._placement is not None:
            self._ray.util.remove_placement_group(self._placement)
            self._placement = None

    def _start(self, count: int, device: str, timeout: int | float) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        each = {"CPU": 1.0} if device == "cpu" else {"CPU": 1.0, "GPU": 1.0}
        placement = self._placement = placement_group([each] * count, strategy="PACK")
        if not placement.wait(timeout):
            there = {kind: self._ray.cluster_resources().get(kind, 0.0) for kind in each}
            raise SettingError(
                f"{count} ranks with {each} each found no place within {timeout:g} s; the cluster has "
                f"{there}, free or taken: add machines, give fewer ranks, or wait longer"
            )
        actor = self._ray.remote(max_restarts=0)(_Rank)
        for index in range(count):
            where = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=index)
            options = {"num_cpus": each["CPU"], "num_gpus": each.get("GPU", 0)}
            self._actors.append(actor.options(scheduling_strategy=where, **options).remote())

    def _all(self, asked: list[Any]) -> Any:
        """What the first rank says, once all have; whichever fails first is told of."""
        pending = asked
        while pending:
            done, pending = self._ray.wait(pending, num_returns=1)
            try:
                _, error = self._ray.get(done[0])
            except self._ray.exceptions.RayError as gone:
                rank = asked.index(done[0])
                self.close()
                raise RankError(
                    f"rank {rank} of {len(asked)} has ended ({_first_line(gone)}), and the others with it; "
                    "make the group anew and ask again"
                ) from gone
            if isinstance(error, RankError):  # another one is gone, or does something else
                self.close()
            if error is not None:
                raise error
        return self._ray.get(asked[0])[0]


class _Rank:
    """One rank: an actor."""

    def opens(self, count: int) -> tuple[tuple[str, int], None]:
        """Where the others can meet this one, the first."""
        import ray
        import torch.distributed as dist

        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            host, 0, count, is_master=True, wait_for_workers=False
        )
        return (host, self._store.port), None

    def joins(
        self,
        rank: int,
        name: str,
        device: str,
        dtype: str,
        count: int,
        at: tuple[str, int],
        timeout: int | float,
    ) -> tuple[None, LastwordError | None]:
        """Meet the others and load this rank's part."""
        import torch.distributed as dist

        if rank > 0:
            self._store = dist.TCPStore(*at, count, is_master=False)  # type: ignore[attr-defined]
        dist.init_process_group(
            BACKENDS[device],
            store=self._store,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout),
        )
        try:
            self._model = load(name, device=device, dtype=dtype, parallel=count)
        except LastwordError as wrong:
            return None, wrong
        return None, None

    def calls(self, function: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, LastwordError | None]:
        """What a function makes of the model, or why it was refused."""
        try:
            said = function(self._model, *given)
        except LastwordError as wrong:
            return None, wrong
        return (said if self._model.ranks.rank == 0 else None), None  # type: ignore[union-attr]


def _generate(
    model: Any, batch: Mapping[Key, GenerationRequest], recipe: Recipe, rows: int
) -> list[GenerationReply[Key]]:
    return [
        reply for some in LocalEngine(model).generate(batch, recipe, max_batch_size=rows) for reply in some
    ]


def _connected() -> Any:
    try:
        import ray
    except ImportError as missing:
        raise ExtraError(f"RankGroup needs Ray, which is not installed: {install('ray')}") from missing
    if not ray.is_initialized():
        raise SettingError(
            "RankGroup was asked for in a process without a Ray cluster; call ray.init(address=...) first, "
            'or ray.init("local") for one of this machine'
        )
    return ray


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
