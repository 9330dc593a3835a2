"""Plots as inline SVG, 400 units wide for a phone. Colours are CSS classes: one drawing serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Bar", "Line", "Point", "Stack", "bars", "lines", "scatter", "stacks"]

_WIDTH = 400
_LABEL = 92
_VALUE = 74


class Bar(NamedTuple):
    """A bar with its spread; css names its colour."""

    label: str
    value: float
    low: float
    high: float
    css: str
    text: str


class Stack(NamedTuple):
    """A bar of parts, (css, value) each."""

    label: str
    parts: Sequence[tuple[str, float]]
    text: str


class Point(NamedTuple):
    """A point of a scatter plot; title is shown on hover."""

    x: float
    y: float
    css: str
    title: str


class Line(NamedTuple):
    """A series."""

    label: str
    css: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def _text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>'


def _ticks(low: float, high: float, n: int = 4) -> list[float]:
    """Round numbers within [low, high]."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / n))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= n)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def bars(title: str, rows: Sequence[Bar], *, unit: str) -> str:
    """Bars on a logarithmic axis, each with a line from its low to its high."""
    low = 10 ** math.floor(math.log10(min(row.low for row in rows)))
    high = 10 ** math.ceil(math.log10(max(row.high for row in rows)) + 1e-9)
    x0, x1 = _LABEL, _WIDTH - _VALUE

    def x(value: float) -> float:
        return x0 + (x1 - x0) * math.log10(max(value, low) / low) / max(1e-9, math.log10(high / low))

    height = 22 * len(rows) + 40
    body = []
    decade = low
    while decade <= high * 1.001:
        at = x(decade)
        body.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - 34}" class="grid"/>')
        body.append(_text(at, height - 22, f"{decade:,.0f}" if decade >= 1 else f"{decade:g}", "tick", "middle"))
        decade *= 10
    body.append(_text(_WIDTH - 4, height - 5, f"{unit}, logarithmic", "tick", "end"))
    for i, row in enumerate(rows):
        y = 6 + 22 * i
        body.append(f'<rect x="{x0}" y="{y}" width="{max(1.0, x(row.value) - x0):.1f}" height="14" class="{row.css}"/>')
        body.append(f'<line x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y + 7}" y2="{y + 7}" class="whisker"/>')
        body.append(_text(x0 - 6, y + 11, row.label, "", "end"))
        body.append(_text(max(x(row.value), x(row.high)) + 6, y + 11, row.text, "value"))
    return _svg(height, title, body)


def stacks(title: str, rows: Sequence[Stack], *, unit: str) -> str:
    """Bars of parts, one after another from the left, on a linear axis."""
    most = max(sum(value for _, value in row.parts) for row in rows) or 1.0
    x0, x1 = _LABEL, _WIDTH - _VALUE
    height = 22 * len(rows) + 30
    body = []
    for tick in _ticks(0, most):
        at = x0 + (x1 - x0) * tick / most
        body.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - 24}" class="grid"/>')
        body.append(_text(at, height - 12, f"{tick:g}", "tick", "middle"))
    body.append(_text(x1 + 8, height - 12, unit, "tick"))
    for i, row in enumerate(rows):
        y, at = 6 + 22 * i, float(x0)
        for css, value in row.parts:
            width = (x1 - x0) * value / most
            body.append(f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="14" class="{css}"/>')
            at += width
        body.append(_text(x0 - 6, y + 11, row.label, "", "end"))
        body.append(_text(at + 6, y + 11, row.text, "value"))
    return _svg(height, title, body)


def _frame(
    height: int, xs: tuple[float, float], ys: tuple[float, float], x_title: str, y_title: str, *, x_ticks: bool = True
) -> tuple[list[str], float, float, float, float]:
    x0, x1, y0, y1 = 46.0, _WIDTH - 14.0, height - 34.0, 22.0
    body = []
    for tick in _ticks(*ys):
        at = y0 + (y1 - y0) * (tick - ys[0]) / ((ys[1] - ys[0]) or 1)
        body.append(f'<line x1="{x0}" x2="{x1}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        body.append(_text(x0 - 6, at + 3, f"{tick:g}", "tick", "end"))
    if x_ticks:
        for tick in _ticks(*xs):
            at = x0 + (x1 - x0) * (tick - xs[0]) / ((xs[1] - xs[0]) or 1)
            body.append(_text(at, y0 + 13, f"{tick:g}", "tick", "middle"))
    body.append(_text(x1, height - 6, x_title, "tick", "end"))
    body.append(_text(4, 12, y_title, "tick"))
    return body, x0, x1, y0, y1


def scatter(title: str, points: Sequence[Point], *, x_title: str, y_title: str) -> str:
    """Points over linear axes from 0."""
    xs = (0.0, max(point.x for point in points) * 1.08 or 1.0)
    ys = (0.0, max(point.y for point in points) * 1.08 or 1.0)
    height = 240
    body, x0, x1, y0, y1 = _frame(height, xs, ys, x_title, y_title)
    for point in points:
        cx, cy = x0 + (x1 - x0) * point.x / xs[1], y0 + (y1 - y0) * point.y / ys[1]
        body.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4.5" class="{point.css}">'
            f"<title>{escape(point.title)}</title></circle>"
        )
    return _svg(height, title, body)


def lines(
    title: str, series: Sequence[Line], *, x_title: str, y_title: str, labels: Sequence[str] = (), height: int = 220
) -> str:
    """Series over linear axes; labels name the positions 0, 1, ... of the x axis."""
    every = [point for line in series for point in line.points]
    xs = (min(x for x, _ in every), max(x for x, _ in every))
    ys = (0.0, max(y for _, y in every) * 1.08 or 1.0)
    body, x0, x1, y0, y1 = _frame(height, xs, ys, x_title, y_title, x_ticks=not labels)

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - xs[0]) / (xs[1] - xs[0]) if xs[1] > xs[0] else 0.5
        return x0 + (x1 - x0) * share, y0 + (y1 - y0) * y / ys[1]

    for i, label in enumerate(labels):
        body.append(_text(at(i, 0)[0], y0 + 13, label, "tick", "middle"))
    for line in series:
        places = [at(x, y) for x, y in line.points]
        dashed = " dashed" if line.is_dashed else ""
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f'<polyline points="{drawn}" class="line {line.css}{dashed}"/>')
        body += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" class="{line.css}"><title>{escape(line.label)}</title></circle>'
            for x, y in places
        ]
    return _svg(height, title, body)
