"""A line plot with two logarithmic axes as SVG text."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 40, 56, 60
COLOURS = ("#c2410c", "#475569", "#0f766e", "#7c3aed", "#0369a1")


def svg(
    title: str,
    x_name: str,
    y_name: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    scale: float = 1.0,
) -> str:
    """The plot of several series of points (x, y), all above zero; y is multiplied by scale before it is drawn."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [max(y * scale, 1e-3) for points in series.values() for _, y in points]
    x_low, x_high = log10(min(xs)), log10(max(xs))
    y_low, y_high = floor(log10(min(ys))), ceil(log10(max(ys)) + 1e-9)

    def across(x: float) -> float:
        return LEFT + (log10(x) - x_low) / ((x_high - x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (log10(y) - y_low) / ((y_high - y_low) or 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for power in range(y_low, y_high + 1):
        height = up(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for x in sorted(set(xs)):
        parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 15}" text-anchor="middle">{escape(x_name)}</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="20" y="{middle}" transform="rotate(-90 20 {middle})" text-anchor="middle">{escape(y_name)}</text>'
    )
    for index, (name, points) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [(across(x), up(max(y * scale, 1e-3))) for x, y in points]
        points_text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{points_text}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        line, column = divmod(index, 3)
        parts.append(
            f'<text x="{LEFT + 190 * column}" y="{TOP - 20 + 14 * line}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])
