"""Gathered: counters of many replicas as one page, each series with the name of its replica."""

from __future__ import annotations

from collections.abc import Mapping

from lastword.serve.ray.report import Report

LABEL = "replica"


def gathered(texts: Mapping[str, bytes], reports: Mapping[str, Report]) -> bytes:
    """One page for Prometheus, which adds them up.

    Sums of ours would fall when a replica goes, and a counter that falls reads as one that began anew.
    """
    families: dict[str, list[str]] = {}
    for name, text in texts.items():
        heading = ""
        for line in text.decode().splitlines():
            if line.startswith("# HELP"):
                heading = line
                families.setdefault(heading, [])
            elif line.startswith("#"):
                if line not in families[heading]:
                    families[heading].append(line)
            elif line:
                families[heading].append(_labelled(line, name))
    lines = [line for heading, rows in families.items() for line in (heading, *rows)]
    lines += [
        "# HELP lastword:replicas Replicas that run",
        "# TYPE lastword:replicas gauge",
        f"lastword:replicas {len(reports)}",
    ]
    for unit in ("columns", "seconds"):
        family = f"lastword:predicted_work_{unit}"
        lines += [f"# HELP {family} Work in hand, as predicted", f"# TYPE {family} gauge"]
        lines += [
            f'{family}{{{LABEL}="{name}"}} {getattr(report, unit):.6g}' for name, report in reports.items()
        ]
    return ("\n".join(lines) + "\n").encode()


def _labelled(line: str, name: str) -> str:
    """A sample with one label more; values of ours hold no space."""
    series, _, value = line.rpartition(" ")
    label = f'{LABEL}="{name}"'
    if series.endswith("}"):
        return f"{series[:-1]},{label}}} {value}"
    return f"{series}{{{label}}} {value}"
