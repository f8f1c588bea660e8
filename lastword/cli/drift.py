"""`lastword drift`: the expected length read from later denoising steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli.evaluate import planned, wrote
from lastword.cli.options import DeviceOption, DtypeOption, path_option


def drift(
    model: Annotated[
        Optional[str], typer.Option("--model", "-m", help="As in eval: default: the preset's.")
    ] = None,
    tasks: Annotated[Optional[str], typer.Option(help="As in eval: names, separated by commas.")] = None,
    preset: Annotated[
        Optional[str], typer.Option(help="As in eval; blocks and caches have no part in it.")
    ] = None,
    steps: Annotated[str, typer.Option(help="Denoising steps, separated by commas.")] = "2,5,7,10",
    slots: Annotated[
        Optional[int],
        typer.Option(help="Slots of the canvas that is read; the preset's, or the model's own."),
    ] = None,
    limit: Annotated[Optional[int], typer.Option(help="Samples per task; all if left out.")] = None,
    rows: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 8,
    out: Annotated[Path, path_option("Folder of records, as for eval.")] = Path("out/eval"),
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Read the expected length before the first denoising step and after some: the paper's step ablation.

    Decoding stops after the last step asked for. A sample that was measured at other steps is measured
    again, at those too; a prompt that leaves no room for all slots is left out. Records go where
    `lastword eval` puts its own, and `lastword tables` shows them.

    Examples:

      lastword drift --limit 2 --tasks algebra --slots 128 --out out/eval-demo

      lastword drift --preset paper/llada-base --out out/paper-8b
    """
    import lastword
    from lastword.cli.progress import progress
    from lastword.cli.tabled import print_markdown
    from lastword.errors import SettingError
    from lastword.evaluate import Journal
    from lastword.evaluate import drift as measure
    from lastword.evaluate.presets import CANVAS
    from lastword.evaluate.run import Layout
    from lastword.evaluate.settings import check_tasks
    from lastword.io.files import check_folder
    from lastword.paper.arms import arms_of
    from lastword.paper.tables import drift as table
    from lastword.policies.length.survival import Survival
    from lastword.validation import short_repr

    try:
        asked = [int(step) for step in steps.split(",")]
    except ValueError as wrong:
        raise SettingError(
            f"--steps {short_repr(steps)} was given; it takes whole numbers: 2,5,7,10"
        ) from wrong
    plan = planned(preset, tasks)
    check_tasks([name for setting in plan.settings for name in setting.tasks])
    name = model or plan.model
    canvas = CANVAS if slots is None and preset else slots
    check_folder(out)
    loaded = lastword.load(name, device=device, dtype=dtype)
    chat = Layout.of(loaded, chat=plan.chat).chat
    journal = Journal(out / f"{Path(name).name}.drift.jsonl")
    found = []
    for setting in plan.settings:
        with progress(f"prompts of {','.join(setting.tasks)}") as bar:
            found += measure(
                loaded, name, setting.load(chat=chat), journal, length=Survival(canvas), steps=asked,
                limit=limit, rows=rows, chat=chat, bos=plan.bos, recipe=setting.recipe,
                progress=bar.count,
            )  # fmt: skip
    print_markdown(table(arms_of(found)).markdown())
    wrote(journal.path, len(found))
