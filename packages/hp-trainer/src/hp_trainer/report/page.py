# SPDX-License-Identifier: Apache-2.0
"""The page's content: what a run's numbers say, in words and rows, and the template that lays them out."""

from __future__ import annotations

import json
import math
import re
import shlex
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from typing import Any

import jinja2

import hp_trainer
from hp_trainer.report import format as fmt
from hp_trainer.report import series, tables
from hp_trainer.report.charts import all_charts, phase_chart
from hp_trainer.report.data import RunData, mapping, number
from hp_trainer.report.figure import Chart

_NO_BREAK = "\N{NO-BREAK SPACE}"
STATUS_WORDS = {"done": "Done", "failed": "Failed", "running": "Running", "unknown": "Unfinished"}


def render(run: RunData) -> str:
    """Return the whole page, with Plotly's script, the style sheet and the figures inside it."""
    charts, phases = all_charts(run), phase_chart(run)
    figures = {chart.key: chart.figure for chart in [*charts, *([phases] if phases else [])]}
    return _template().render(
        run=run,
        status=run.status,
        status_word=STATUS_WORDS[run.status],
        subtitle=subtitle(run),
        held_out=held_out(run),
        tiles=tiles(run),
        notices=notices(run),
        failure=failure(run),
        phase_chart=phases,
        phases=tables.phase_rows(run),
        setting=tables.setting_rows(run),
        config=tables.config_rows(run.config),
        versions=tables.version_rows(run),
        plugins=tables.plugin_rows(run),
        steps=tables.step_table(run),
        step_columns=tables.STEP_COLUMNS,
        files=tables.file_rows(run),
        command=reproduce_command(run),
        style=_asset("report.css"),
        script=_asset("report.js"),
        plotly=_plotly_script() if figures else "",
        figures=_script_json(figures),
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        version=hp_trainer.__version__,
        **_chart_groups(charts),
    )


def _chart_groups(charts: list[Chart]) -> dict[str, list[Chart]]:
    return {"wide_charts": [c for c in charts if c.wide], "small_charts": [c for c in charts if not c.wide]}


def subtitle(run: RunData) -> list[str]:
    """Return the model, its size, the precision and the devices, a phrase each."""
    model = run.section("model")
    parts = [str(model["name"])] if model.get("name") else []
    if model.get("architecture") and model["architecture"] != model.get("name"):
        parts.append(str(model["architecture"]))
    num_parameters = number(model, "num_parameters")
    if num_parameters:
        parts.append(f"{fmt.big_count(num_parameters)} parameters")
    if model.get("dtype"):
        parts.append(str(model["dtype"]).removeprefix("torch."))
    ranks = "1 rank" if run.world_size == 1 else f"{run.world_size:,} ranks"
    parts.append(f"{ranks} on {run.info['device']}" if run.info.get("device") else ranks)
    return parts


def held_out(run: RunData) -> dict[str, str] | None:
    """Return the held-out loss before and after, its change and the perplexity, as text; None: not measured."""
    entries = [run.section("evaluation").get(key) for key in ("before", "after")]
    before, after = (number(mapping(entry), "loss") for entry in entries)
    perplexities = [number(mapping(entry), "perplexity") for entry in entries]
    note = ""
    if before is None and run.evaluations and run.evaluations[0].step == 0:
        before = run.evaluations[0].loss
    if after is None and run.evaluations and run.evaluations[-1].step > 0:
        after = run.evaluations[-1].loss
        note = f"last measured after step {run.evaluations[-1].step:,}"
    if before is None and after is None:
        return None
    for i, value in enumerate((before, after)):
        if perplexities[i] is None and value is not None:
            perplexities[i] = math.exp(value) if value < 700 else math.inf
    result = {
        "before": fmt.loss(before),
        "after": fmt.loss(after),
        "perplexity_before": fmt.significant(perplexities[0]),
        "perplexity_after": fmt.significant(perplexities[1]),
        "only": "" if before is not None and after is not None else "before" if after is None else "after",
        "note": note,
        "change": "",
        "trend": "",
    }
    finite = series.finite([before, after])
    if len(finite) == 2:
        change = finite[1] - finite[0]
        share = change / finite[0] if finite[0] else 0.0
        result["change"] = (
            f"{fmt.signed(change, fmt.loss(abs(change)))} ({fmt.signed(share, fmt.percent(abs(share), 1))})"
        )
        result["trend"] = "better" if change < 0 else "worse" if change > 0 else "same"
    return result


def tiles(run: RunData) -> list[tuple[str, str, str]]:
    """Return the headline figures: (label, value, what stands below it)."""
    rows: list[tuple[str, str, str]] = []
    setup_s, train_s = number(run.info, "setup_s"), number(run.info, "train_s")
    parts = [("set-up", setup_s), ("training", train_s)]
    if run.rest_s is not None and run.rest_s > 0.005 * (run.total_s or 0.0):
        saved = "evaluation and saving" if run.section("evaluation") else "saving"
        parts.append((saved if run.status == "done" else "the rest", run.rest_s))
    below = ", ".join(
        f"{word} {fmt.duration(value).replace(' ', _NO_BREAK)}" for word, value in parts if value is not None
    )
    rows.append(("Total time", fmt.duration(run.total_s), below))
    speeds = [step.tokens_per_s for step in run.steps]
    tokens = series.finite(step.tokens for step in run.steps)
    rows.append(("Tokens per second", fmt.count(series.median(speeds)), "median, all ranks"))
    rows.append(("Tokens trained", fmt.big_count(tokens[-1] if tokens else 0), f"{_steps(len(run.steps))}"))
    step_s = series.median(step.step_s for step in run.steps)
    rows.append(("Step time", fmt.duration(step_s), "median"))
    peaks = series.finite(value for step in run.steps for value in step.memory_bytes)
    rows.append(("Peak memory", fmt.bytes_(max(peaks, default=None)), "highest rank"))
    hosts = run.info.get("hosts")
    num_hosts = len(hosts) if isinstance(hosts, list) else 0
    where = "1 host" if num_hosts == 1 else f"{num_hosts} hosts" if num_hosts else ""
    rows.append(("Ranks", fmt.count(run.world_size), where))
    return [(label, _unbroken(value), below) for label, value, below in rows]


def _unbroken(text: str) -> str:
    """Return ``text`` with its numbers bound to their units, so that no unit starts a line."""
    return re.sub(r"(?<=\d) (?=[^\W\d])", _NO_BREAK, text)


def _steps(num: int) -> str:
    return "1 step" if num == 1 else f"{num:,} steps"


def notices(run: RunData) -> list[str]:
    """Return what a reader must know before trusting the page: missing files, NaN losses, a run that never ended."""
    result = list(run.problems)
    bad = [step.step for step in run.steps if step.loss is not None and not math.isfinite(step.loss)]
    if bad:
        result.append(
            f"The training loss is NaN or infinite at {len(bad):,} of {_steps(len(run.steps))}, the first of them step "
            f"{bad[0]:,}."
        )
    skipped = [step.step for step in run.steps if step.skipped]
    if skipped:
        result.append(
            f"The update was skipped at {len(skipped):,} of {_steps(len(run.steps))}, the first of them step "
            f"{skipped[0]:,}: a gradient was not finite."
        )
    if run.status in {"running", "unknown"}:
        last = f"its last step here is {run.steps[-1].step:,}" if run.steps else "it has written no step"
        result.append(f"The run has not written its end: it is under way or was killed; {last}.")
    elif not run.steps:
        result.append("No training step was recorded.")
    return result


def failure(run: RunData) -> dict[str, str] | None:
    """Return a failed run's error: ``message``, ``traceback``, ``rank`` and ``step`` as text, ``""`` where unknown."""
    if run.status != "failed":
        return None
    error = run.info.get("error")
    entry = mapping(error) if isinstance(error, dict) else {"message": error or "run.json does not say why."}
    message = str(entry.get("message") or "")
    kind = str(entry.get("type") or "")
    return {
        "message": f"{kind}: {message}" if kind and not message.startswith(kind) else message,
        "traceback": str(entry.get("traceback") or ""),
        "rank": "" if entry.get("rank") is None else str(entry["rank"]),
        "step": f"{run.steps[-1].step:,}" if run.steps else "",
    }


def reproduce_command(run: RunData) -> str:
    """Return the command that runs the configuration again on as many ranks, from where ``hp train`` was started."""
    hosts = run.info.get("hosts")
    num_hosts = len(hosts) if isinstance(hosts, list) else 1
    config = shlex.quote(str(run.place / "config.yaml"))
    if num_hosts > 1:
        return f"hp train {config}  # under a launcher that starts {run.world_size} ranks on {num_hosts} hosts"
    return f"hp train {config} -n {run.world_size}"


def _script_json(value: object) -> str:
    """Return JSON that may stand in a ``<script>``: no ``<`` to end it, and NaN is an error rather than bad JSON."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return resources.files("hp_trainer.report").joinpath("templates", name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["static"] = _static
    return environment.from_string(_asset("report.html.j2"))


def _static(text: Any) -> str:
    """Mark text of our own package (style, script, escaped JSON) as safe; never used on what a run wrote."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704
