"""Draws the figures of how.md as SVG: `python docs/figures/draw.py` writes them anew beside this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

INK, SOFT, PAPER = "#1f2933", "#6b7785", "#ffffff"
STORAGE, TRAINER, LINK, WARM = "#dbeafe", "#dcfce7", "#f1f5f9", "#fee2e2"
ROW = 34


@dataclass
class Drawing:
    """A picture that grows by boxes, arrows and words."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def panel(self, x: int, y: int, width: int, height: int, fill: str, title: str) -> None:
        """Draw a place, with its name above."""
        shape = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="{fill}"'
        self.parts.append(f"<rect {shape}/>")
        self.words(x + 14, y + 22, title, bold=True)

    def box(self, x: int, y: int, width: int, text: str, fill: str = PAPER) -> None:
        """Draw a step; its middle is at `y`."""
        shape = f'x="{x}" y="{y - 13}" width="{width}" height="26" rx="6" fill="{fill}" stroke="{INK}"'
        self.parts.append(f'<rect {shape} stroke-width="1"/>')
        self.words(x + width // 2, y + 4, text, middle=True)

    def arrow(self, x: int, y: int, to_x: int, to_y: int, *, dashed: bool = False) -> None:
        """Draw a way from one point to another."""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        ends = f'x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"'
        self.parts.append(f'<line {ends} stroke="{INK}" stroke-width="1.3" marker-end="url(#head)"{dash}/>')

    def words(self, x: int, y: int, text: str, *, bold: bool = False, middle: bool = False, soft: bool = False) -> None:
        """Write a line."""
        style = f'fill="{SOFT if soft else INK}"'
        style += ' font-weight="600"' if bold else ""
        style += ' text-anchor="middle"' if middle else ""
        self.parts.append(f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>')

    def svg(self) -> str:
        """Return the picture."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="system-ui, sans-serif" font-size="13">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" rx="12" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", marker, paper, *self.parts, "</svg>", ""])


def sample() -> Drawing:
    """A sample's way: three photos with three cuts, and one tensor each, the same as without a cut."""
    made = Drawing(960, 330, "Three samples on their way from storage to the model, each divided at another point")
    made.panel(16, 16, 386, 298, STORAGE, "storage node: sophon serve")
    made.panel(414, 16, 112, 298, LINK, "link")
    made.panel(538, 16, 406, 298, TRAINER, "trainer: sophon.DataLoader")
    whole = ["decode", "crop", "flip", "tensor"]
    rows = [
        ("0:raw", "the file as it is", ["read"], "110 KB", whole),
        ("0:window", "blocks of the JPEG that the crop needs", ["read", "cut out"], "50 KB", whole),
        ("2:webp", "the crop, without loss", ["read", "decode", "crop", "webp"], "70 KB", ["decode", "flip", "tensor"]),
    ]
    for number, (cut, words, near, size, rest) in enumerate(rows):
        y = 92 + 88 * number
        made.words(30, y - 28, f"{cut}: {words}", soft=True)
        end = _chain(made, 30, y, near)
        here = 552
        made.arrow(end, y, here - 2, y)
        made.words(470, y - 8, size, bold=True, middle=True)
        _chain(made, here, y, rest)
    made.words(748, 308, "the same tensor, to the last bit, whatever the cut", soft=True, middle=True)
    return made


def _chain(made: Drawing, x: int, y: int, steps: list[str]) -> int:
    for number, step in enumerate(steps):
        width = 20 + 8 * len(step)
        made.box(x, y, width, step)
        if number + 1 < len(steps):
            made.arrow(x + width, y, x + width + 18, y)
        x += width + 20
    return x - 20


def plan() -> Drawing:
    """A plan's way: what is measured becomes a profile, and with the resources a plan, which is watched."""
    made = Drawing(960, 280, "From the first samples to a plan, and from what is seen meanwhile to the next plan")
    made.panel(16, 16, 210, 190, TRAINER, "first samples")
    made.words(30, 66, "a few dozen cross in several")
    made.words(30, 86, "ways: every op is timed,")
    made.words(30, 106, "its result weighed; a few")
    made.words(30, 126, "percent go on being tried")
    made.words(30, 146, "as the epoch goes on")
    made.panel(262, 16, 190, 84, LINK, "profile")
    made.words(276, 66, "sample × cut: bytes,")
    made.words(276, 86, "seconds here and there")
    made.panel(262, 122, 190, 84, LINK, "resources")
    made.words(276, 172, "link bytes/s, cores here")
    made.words(276, 192, "and there, consumer")
    made.panel(488, 16, 200, 190, STORAGE, "policy: optimal")
    made.words(502, 66, "the cuts for which the")
    made.words(502, 86, "scarcest of the resources")
    made.words(502, 106, "is done soonest: a linear")
    made.words(502, 126, "program over all samples,")
    made.words(502, 146, "never predicted slower")
    made.words(502, 166, "than any baseline")
    made.panel(724, 16, 220, 190, TRAINER, "plan: one cut per sample")
    made.words(738, 66, "all that follow run by it;")
    made.words(738, 86, "the loader's clocks say what")
    made.words(738, 106, "link and node really give")
    made.arrow(226, 58, 260, 58)
    made.arrow(226, 164, 260, 164)
    made.arrow(452, 58, 486, 58)
    made.arrow(452, 164, 486, 164)
    made.arrow(688, 111, 722, 111)
    made.parts.append(
        f'<path d="M834 206 V244 H357 V210" fill="none" stroke="{INK}" stroke-width="1.3" stroke-dasharray="4 4" '
        'marker-end="url(#head)"/>'
    )
    made.words(
        596, 264, "another link or a busier node: another plan, in the middle of an epoch", soft=True, middle=True
    )
    return made


def fault() -> Drawing:
    """A fault's way: a request that fails is sent again, and every sample comes once, where it belongs."""
    made = Drawing(960, 330, "A request fails, is sent again elsewhere, and every sample comes exactly once")
    made.panel(16, 16, 250, 298, TRAINER, "trainer: what to ask for")
    made.box(40, 76, 200, "ask: samples 8 … 15")
    made.box(40, 164, 200, "ask again: 12 … 15")
    made.box(40, 270, 200, "batches in order")
    made.words(40, 204, "pauses grow; deadline_s ends it", soft=True)
    made.panel(430, 16, 230, 116, WARM, "node A falls silent")
    made.words(446, 66, "8 … 11 have come; then no")
    made.words(446, 86, "byte for up to 10 s: its host")
    made.words(446, 106, "died, hangs, or the cable is out")
    made.panel(430, 148, 230, 80, STORAGE, "node B, or A again")
    made.words(446, 196, "a copy, or a path to fall")
    made.words(446, 216, "back on; the same bits")
    made.panel(700, 16, 244, 212, LINK, "why nothing is lost")
    for number, line in enumerate(
        [
            "A payload is a function of (seed,",
            "epoch, sample, cut): whoever is",
            "asked gives the same bits.",
            "What comes twice is dropped by",
            "its position; what comes too",
            "early waits for its turn.",
        ]
    ):
        made.words(714, 64 + 24 * number, line)
    made.arrow(240, 76, 428, 66)
    made.arrow(428, 110, 242, 158, dashed=True)
    made.arrow(240, 170, 428, 186)
    made.arrow(430, 214, 242, 262)
    made.words(335, 60, "request", middle=True, soft=True)
    made.words(320, 122, "silence", middle=True, soft=True)
    made.words(370, 256, "12 … 15", middle=True, soft=True)
    return made


FIGURES = {"sample": sample, "plan": plan, "fault": fault}


def main() -> None:
    """Write all figures."""
    for name, draw in FIGURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
