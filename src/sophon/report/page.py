"""One HTML page that needs nothing else: no network, no script, no font but the reader's own.

Everything that is not our own markup is escaped: names of data sets are untrusted. The same facts give the same bytes:
nothing here reads a clock, a path or a host's name.
"""

from __future__ import annotations

import html
import re
from importlib import resources

from sophon.report import draw, svg
from sophon.report.chart import Chart, Table
from sophon.report.facts import Facts, Section
from sophon.report.palette import TINTS
from sophon.version import __version__

# Content-Security-Policy: even text that slips through the escaping cannot load or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_QUANTITY = re.compile(r"(?<=\d) (?=(?:%|s|ms|us|min|h|[KMGTP]?B|[kMGT]?bit/s)(?![\w]))")

_OPTION = re.compile(r"--[a-z][a-z-]*")


def _code(found: re.Match[str]) -> str:
    return f"<code>{found[0]}</code>"


def _text(words: str) -> str:
    # Escaped, and with numbers and their units kept on one line.
    return _QUANTITY.sub("\u00a0", html.escape(words))


def page(facts: Facts) -> str:
    """Return the page."""
    title, claim = _text(facts.title), _text(facts.claim or facts.title)
    sections = "\n".join(_section(section) for section in facts.sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_text(_POLICY)}">
<title>{title} · sophon</title>
<link rel="icon" href="data:,">
<style>
{_colours()}
{_style()}</style>
</head>
<body>
<main>
<header>
<p class="brand">sophon report{f" · {title}" if facts.claim else ""}</p>
<h1>{claim}</h1>
<p class="subject">{_text(facts.subject)}</p>
</header>
<section class="lead" aria-label="In plain words">
<div class="words">
{_paragraphs(facts.words)}
</div>
{_headlines(facts)}
</section>
<section>
<h2 id="summary">Summary</h2>
{_table(facts.summary, "Summary")}
</section>
{sections}
{_remarks(facts.remarks)}
<footer>Made by sophon {_text(__version__)}. This page needs no network and loads nothing.</footer>
</main>
</body>
</html>
"""


def _colours() -> str:
    both = [" ".join(f"--{name}: {tint[side]};" for name, tint in TINTS.items()) for side in (0, 1)]
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {both[1]} }} }}"
    # Print is dark on light, whatever the screen shows.
    return f":root {{ {both[0]} }}\n{dark}\n@media print {{ :root {{ {both[0]} }} }}"


def _style() -> str:
    return resources.files("sophon.report").joinpath("page.css").read_text(encoding="utf-8")


def _paragraphs(words: tuple[str, ...]) -> str:
    return "\n".join(f"<p>{_text(sentence)}</p>" for sentence in words)


def _headlines(facts: Facts) -> str:
    if not facts.headlines:
        return ""
    rows = "\n".join(f"<div><dt>{_text(item.label)}</dt><dd>{_text(item.value)}</dd></div>" for item in facts.headlines)
    return f'<dl class="headlines">\n{rows}\n</dl>'


def _section(section: Section) -> str:
    # A last figure without a neighbour takes the full width, with its numbers next to it: otherwise half of the row
    # would be empty.
    alone = len(section.charts) - 1 if len(section.charts) % 2 else None
    charts = "\n".join(_figure(chart, is_alone=place == alone) for place, chart in enumerate(section.charts))
    return f"""<section>
<h2>{_text(section.title)}</h2>
<p class="intro">{_text(section.intro)}</p>
<div class="figures">
{charts}
</div>
</section>"""


def _figure(chart: Chart, *, is_alone: bool) -> str:
    wide = svg.inline(draw.svg(chart, draw.WIDE), "wide")
    narrow = svg.inline(draw.svg(chart, draw.NARROW), "narrow")
    alt = _text(f"{chart.title}. {chart.caption} The numbers are in the table below.")
    return f"""<figure id="{_text(chart.key)}">
<h3>{_text(chart.title)}</h3>
<div class="picture" role="img" aria-label="{alt}">{wide}{narrow}</div>
<figcaption>{_text(chart.caption)}</figcaption>
<details{" open" if is_alone else ""}><summary>The numbers</summary>
{_table(chart.table(), chart.title)}
</details>
</figure>"""


def _table(table: Table, name: str) -> str:
    sides = ["name" if place < table.names else "number" for place in range(len(table.header))]
    head = "".join(
        f'<th scope="col" class="{side}">{_text(cell)}</th>' for side, cell in zip(sides, table.header, strict=True)
    )
    rows = "\n".join(f"<tr>{_row(row, sides)}</tr>" for row in table.rows)
    shape = "scroll many" if len(table.header) > 4 else "scroll"
    text = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    return f'<div class="{shape}" role="region" tabindex="0" aria-label="{_text(name)}: table">{text}</div>'


def _row(row: tuple[str, ...], sides: list[str]) -> str:
    cells = [f'<td class="{side}">{_text(cell)}</td>' for side, cell in zip(sides[1:], row[1:], strict=True)]
    return f'<th scope="row" class="name">{_text(row[0])}</th>{"".join(cells)}'


def _remarks(remarks: tuple[str, ...]) -> str:
    if not remarks:
        return ""
    items = "\n".join(f"<li>{_OPTION.sub(_code, _text(remark))}</li>" for remark in remarks)
    return f'<section class="remarks">\n<h2>About these figures</h2>\n<ul>\n{items}\n</ul>\n</section>'
