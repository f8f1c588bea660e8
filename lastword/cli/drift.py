"""`lastword drift`: the expected length read from later denoising steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli.options import DeviceOption, DtypeOption, ModelOption


def drift(
    model: ModelOption = "tiny-llada-base",
    tasks: Annotated[str, typer.Option(help="As in eval: names, separated by commas.")] = "tiny",
    steps: Annotated[str, typer.Option(help="Denoising steps, separated by commas.")] = "2,5,7,10",
    slots: Annotated[int, typer.Option(help="Slots of the canvas that is read.")] = 256,
    limit: Annotated[Optional[int], typer.Option(help="Samples per task; all if left out.")] = None,
    rows: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 8,
    out: Annotated[Path, typer.Option(help="Folder of records, as for eval.")] = Path("out/eval"),
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Read the expected length before the first denoising step and after some: the paper's step ablation.

    Decoding stops after the last step asked for. A sample that was measured at other steps is measured
    again, at those too; a prompt that leaves no room for all slots is left out. Records go where
    `lastword eval` puts its own, and `lastword tables` shows them.

    Example:

      lastword drift --limit 1 --tasks algebra --slots 64 --out out/eval-demo
    """
    import lastword
    from lastword.errors import SettingError
    from lastword.eval import Journal
    from lastword.eval import drift as measure
    from lastword.eval.arms import arms_of
    from lastword.eval.paper import drift as table
    from lastword.eval.settings import Setting, check_tasks
    from lastword.length import Survival
    from lastword.recipe import Recipe

    try:
        asked = [int(step) for step in steps.split(",")]
    except ValueError as wrong:
        raise SettingError(
            f"--steps {steps!r} was given; it takes whole numbers: 2,5,7,10"
        ) from wrong
    names = tuple(name.strip() for name in tasks.split(","))
    check_tasks(names)
    loaded = lastword.load(model, device=device, dtype=dtype)
    chat = getattr(loaded.tokenizer, "chat_template", None) is not None
    journal = Journal(out / f"{Path(model).name}.drift.jsonl")
    found = measure(
        loaded, model, Setting(names, Recipe()).load(chat=chat), journal,
        length=Survival(slots), steps=asked, limit=limit, rows=rows,
    )  # fmt: skip
    typer.echo(table(arms_of(found)).markdown())
