"""Panels of bars as SVG, for light and dark pages."""

from html import escape
from pathlib import Path

LABEL, BAR, STEP, WIDTH, VALUE = 180, 15, 22, 300, 70
STYLE = """
text { font: 13px sans-serif; fill: #1d2733 }
.page { fill: #fff }
.bar { fill: #9aa8b8 }
.ours { fill: #23805f }
.spread { stroke: #1d2733; stroke-width: 1 }
.title { font-weight: bold }
.foot { font-size: 11px }
@media (prefers-color-scheme: dark) {
  text { fill: #dde4ec }
  .page { fill: #12171d }
  .bar { fill: #5d6b7b }
  .ours { fill: #3fae85 }
  .spread { stroke: #dde4ec }
}
"""


def bars(panels, foot, file, columns=2):
    """`panels`: (title, [(label, (least, median, most), ours, text)]), less being better. `foot`: lines below."""
    rows = [panels[at:at + columns] for at in range(0, len(panels), columns)]
    tall = [max(len(bars) for _, bars in row) * STEP + 54 for row in rows]
    width, height = (LABEL + WIDTH + VALUE) * columns + 10, sum(tall) + 16 * len(foot) + 16
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
           f"<style>{STYLE}</style>", '<rect class="page" width="100%" height="100%"/>']
    top = 8
    for row, step in zip(rows, tall):
        for column, (title, values) in enumerate(row):
            left, y = column * (LABEL + WIDTH + VALUE) + LABEL, top + 16
            most = max((most for _, (_, _, most), *_ in values), default=0) or 1
            out.append(f'<text class="title" x="{left}" y="{y}">{escape(title)}</text>')
            y += 10
            for label, spread, ours, text in values:
                low, middle, high = (value / most * WIDTH for value in spread)
                across = y + BAR / 2
                out += [f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
                        f'<rect class="{"ours" if ours else "bar"}" x="{left}" y="{y}" width="{middle:.1f}" height="{BAR}"/>',
                        f'<path class="spread" d="M{left + low:.1f} {across}H{left + high:.1f}"/>',
                        f'<text x="{left + high + 6:.1f}" y="{y + 12}">{escape(text)}</text>']
                y += STEP
        top += step
    for line in foot:
        out.append(f'<text class="foot" x="8" y="{top + 8}">{escape(line)}</text>')
        top += 16
    Path(file).write_text("\n".join([*out, "</svg>"]) + "\n")
