"""Plots of figures over time, as SVG that a web page shows without anything else."""

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 860, 300, 60, 40, 30
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def over_time(path, title, unit, lines, marks):
    """Writes a plot: `lines` are names with their points (seconds, value), `marks` are moments (seconds) with what happened then."""
    last = max(at for _, points in lines for at, _ in points) or 1
    most = 1.1 * max(value for _, points in lines for _, value in points) or 1
    x = lambda at: LEFT + (WIDTH - LEFT - 10) * at / last
    y = lambda value: HEIGHT - BELOW - (HEIGHT - BELOW - ABOVE) * value / most
    text = lambda at, height, words, more="": f'<text x="{at:.1f}" y="{height:.1f}" font-size="11" {more}>{words}</text>'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 14, f"{title} ({unit})"),
    ]
    for step in range(6):
        value = most * step / 5
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#dddddd"/>')
        out.append(text(LEFT - 6, y(value) + 4, f"{value:.0f}", 'text-anchor="end"'))
        out.append(text(x(last * step / 5), HEIGHT - BELOW + 16, f"{last * step / 5:.0f} s", 'text-anchor="middle"'))
    for at, words in marks:
        out.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{ABOVE}" y2="{HEIGHT - BELOW}" stroke="#888888" stroke-dasharray="4 3"/>')
        out.append(text(x(at) + 3, ABOVE + 8, words))
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path_of = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        out.append(f'<polyline points="{path_of}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append(text(LEFT + 10 + 200 * number, HEIGHT - 8, name, f'fill="{colour}"'))
    out.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")
