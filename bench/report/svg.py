"""Charts as SVG: lines over logarithmic axes, and bars with intervals. Pure: text out."""

import math
from xml.sax.saxutils import escape

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000"]
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 170, 40, 52


def _text(x, y, words, anchor="middle", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" {more}>'
            f"{escape(str(words))}</text>")


def _line(x1, y1, x2, y2, colour="#cccccc", width=1.0):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{colour}" stroke-width="{width}"/>')


def _document(height, title, parts):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" role="img" aria-label="{escape(title)}">')
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, background, _text(WIDTH / 2, 22, title, more='font-weight="bold"'),
                      *parts, "</svg>"]) + "\n"


def short_bytes(count):
    """4096 -> "4K"."""
    for suffix in ("", "K", "M"):
        if count < 1024:
            return f"{count:g}{suffix}"
        count /= 1024
    return f"{count:g}G"


def _decades(low, high):
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def line_chart(title, y_label, series):
    """`series`: {name: [(bytes, value), ...]}, all above 0. Both axes are logarithmic."""
    points = [point for values in series.values() for point in values]
    if not points:
        raise ValueError(f"the chart {title!r} has no points")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x = math.log2(min(xs)), math.log2(max(xs))
    if high_x == low_x:
        high_x += 1
    decades = _decades(min(ys), max(ys))
    low_y, high_y = decades[0], max(decades[-1], decades[0] + 1)

    def place_x(x):
        return LEFT + (math.log2(x) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def place_y(y):
        return HEIGHT - BOTTOM - (math.log10(y) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for decade in range(low_y, high_y + 1):
        y = place_y(10.0**decade)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, f"{10.0**decade:g}", "end")]
    labels = sorted(set(xs))
    for x in labels[:: max(1, math.ceil(len(labels) / 14))]:
        parts += [_line(place_x(x), HEIGHT - BOTTOM, place_x(x), HEIGHT - BOTTOM + 5, "#333333"),
                  _text(place_x(x), HEIGHT - BOTTOM + 20, short_bytes(x))]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "bytes"))
    parts.append(_text(18, HEIGHT / 2, y_label, more=f'transform="rotate(-90 18 {HEIGHT / 2})"'))
    for index, (name, values) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in sorted(values))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 10 + 20 * index
        parts += [_line(WIDTH - RIGHT + 12, y, WIDTH - RIGHT + 34, y, colour, 3),
                  _text(WIDTH - RIGHT + 40, y + 4, name, "start")]
    return _document(HEIGHT, title, parts)


def interval_chart(title, label, rows, zero_label):
    """Bars from 0 to each value with a line over its interval. `rows`: [(name, value, low, high)];
    `zero_label` says what 0 is."""
    if not rows:
        raise ValueError(f"the chart {title!r} has no rows")
    left, row = 250, 26
    height = TOP + row * len(rows) + BOTTOM
    low = min(0.0, min(r[2] for r in rows))
    high = max(0.0, max(r[3] for r in rows))
    span = (high - low) or 1.0

    def place(value):
        return left + (value - low) / span * (WIDTH - left - 70)

    parts = []
    for index, (name, value, its_low, its_high) in enumerate(rows):
        y = TOP + row * index + row / 2
        start, end = sorted((place(0.0), place(value)))
        colour = COLOURS[0] if "hora" in name else COLOURS[1]
        parts += [_text(left - 10 if low == 0.0 else 240, y + 4, name, "end"),
                  f'<rect x="{start:.1f}" y="{y - 8:.1f}" width="{end - start:.1f}" height="16" '
                  f'fill="{colour}"/>',
                  _line(place(its_low), y, place(its_high), y, "#000000", 1.5),
                  _text(max(place(its_high), place(value)) + 6, y + 4, f"{value:+.1f}", "start")]
    bottom = TOP + row * len(rows)
    parts += [_line(place(0.0), TOP - 4, place(0.0), bottom + 4, "#333333"),
              _text(place(0.0), bottom + 18, zero_label),
              _text((left + WIDTH) / 2, bottom + 38, label)]
    return _document(height, title, parts)
