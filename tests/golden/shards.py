"""The shards of llada-tiny-sharded, cut from llada-tiny: kept once, they would be the same weights twice."""

import json
import os
from pathlib import Path

from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent


def cut() -> None:
    """Write the shards that are missing, as their index says; each appears whole or not at all."""
    folder = HERE / "llada-tiny-sharded"
    placed = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    missing = [name for name in sorted({*placed.values()}) if not (folder / name).exists()]
    if not missing:
        return
    whole = load_file(HERE / "llada-tiny" / "model.safetensors")
    for name in missing:
        part = folder / f".{name}.{os.getpid()}"
        own = {tensor: whole[tensor] for tensor, shard in placed.items() if shard == name}
        save_file(own, part, metadata={"format": "pt"})
        part.replace(folder / name)
