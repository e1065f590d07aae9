"""How many I/O nodes for a program: by results of `explore run`, or else by what FORGE's authors published.

For each phase of the program the nearest measured phase is looked for among the results of one setting
(directory, file system, hosts). A way of doing the program's input and output is a number of I/O nodes with a
scheduler and an assignment. Ways are compared by the time that the program's bytes take at the measured
bandwidths, and of those that cannot be told apart, the one with the fewest I/O nodes is recommended, as in
FORGE's paper: a node that is not an I/O node can compute.
"""

from ..darshan.phases import Phase
from ..explore.results import Exploration, Run
from .gain import ENOUGH, seconds, times_faster
from .nearest import Manner, counted, distance, manner_of
from .papers import forwarding_from_paper
from .recommendations import ForwardingAdvice, Near, Way

DEFAULTS = ("to", "node")
"""The scheduler and assignment that `bivouac run` takes without options."""
ENOUGH_BYTES = 0.5
"""Near patterns have to cover this share of a program's bytes for a recommendation."""


def usable(exploration: Exploration) -> list[Run]:
    """The runs that a time can be computed from. A phase that transferred nothing has none."""
    return [run for run in exploration.usable() if all(run.bandwidths)]


def place_of(exploration: Exploration) -> tuple:
    """Where it was measured. Only results of the same place can be compared."""
    return exploration.setting.directory, exploration.setting.file_system, tuple(sorted(exploration.nodes))


def nearest_of(phase: Phase, explorations: list[Exploration]) -> list[Near]:
    """The measured phases of which there are runs, the nearest first. The same pattern in several files is one."""
    found: dict[tuple, Near] = {}
    for exploration in explorations:
        run = {run.pattern for run in usable(exploration)}
        for pattern in exploration.patterns.values():
            if pattern.name not in run:
                continue
            for i, what in enumerate(pattern.phases):
                manner = Manner(what.operation, what.layout, what.spatiality, what.request, pattern.processes)
                found.setdefault((pattern, i), Near(pattern, i, distance(manner_of(phase), manner), exploration.source))
    return sorted(found.values(), key=lambda near: (near.distance.value, near.pattern.name, near.phase))


def samples_of(near: Near, explorations: list[Exploration]) -> dict[Way, list[float]]:
    samples: dict[Way, list[float]] = {}
    for exploration in explorations:
        if exploration.patterns.get(near.pattern.name) != near.pattern:
            continue
        for run in usable(exploration):
            if run.pattern == near.pattern.name:
                setting = exploration.setting
                way = Way(run.io_nodes, setting.scheduler, setting.assign) if run.io_nodes else Way(0)
                samples.setdefault(way, []).append(run.bandwidths[near.phase])
    return samples


def advise_forwarding(phases: list[Phase], explorations: list[Exploration]) -> ForwardingAdvice:
    settings: dict[tuple, list[Exploration]] = {}
    for exploration in explorations:
        if usable(exploration):
            settings.setdefault(place_of(exploration), []).append(exploration)
    candidates = [from_results(phases, some) for some in settings.values()]
    cautions = [
        f"{exploration.source} has no runs that can be used: in each, a phase transferred nothing."
        for exploration in explorations
        if not usable(exploration)
    ]
    if candidates:
        advice = min(candidates, key=lambda c: (not c.measured, -c.covered, total_distance(c)))
        if len(candidates) > 1:
            advice.cautions.append(
                f"The results are of {len(candidates)} settings (directory, file system, hosts), which cannot be "
                f"compared: those with the nearest patterns were used."
            )
        if not advice.measured:
            rules = forwarding_from_paper(phases)
            rules.nearest, rules.covered = advice.nearest, advice.covered
            rules.cautions = advice.cautions + rules.cautions
            advice = rules
    else:
        advice = forwarding_from_paper(phases)
    advice.cautions = cautions + advice.cautions
    return advice


def total_distance(advice: ForwardingAdvice) -> float:
    return sum(near[0].distance.value for near in advice.nearest if near)


def from_results(phases: list[Phase], explorations: list[Exploration]) -> ForwardingAdvice:
    """Advice from results of one setting."""
    advice = ForwardingAdvice(measured=False)
    advice.nearest = [nearest_of(phase, explorations)[:3] for phase in phases]
    near = [(phase, found[0]) for phase, found in zip(phases, advice.nearest) if found and not found[0].distance.far]
    everything = sum(phase.total for phase in phases)
    advice.covered = sum(phase.total for phase, _ in near) / everything if everything else 0.0
    if advice.covered < ENOUGH_BYTES:
        advice.cautions.append(
            "No measured pattern is near enough to conclude anything: derive the program's own with "
            "`bivouac explore patterns --from LOG`, and measure it with `bivouac explore run`."
        )
        return advice
    amounts = [float(phase.total) for phase, _ in near]
    by_phase = [samples_of(found, explorations) for _, found in near]
    ways = sorted(
        set.intersection(*(set(samples) for samples in by_phase)),
        key=lambda w: (w.io_nodes, w.scheduler or "", w.assign or ""),
    )
    if not ways:
        advice.cautions.append(
            "The patterns nearest to the program's phases were not run with the same numbers of I/O nodes."
        )
        return advice
    samples = {way: [samples[way] for samples in by_phase] for way in ways}
    advice.measured = True
    way, best = choose(advice, amounts, ways, samples)
    describe(advice, way, best, phases, near, explorations)
    return advice


def choose(
    advice: ForwardingAdvice, amounts: list[float], ways: list[Way], samples: dict[Way, list[list[float]]]
) -> tuple[Way, Way]:
    """The recommended way, and the one that is fastest by its medians."""
    best = min(ways, key=lambda way: seconds(amounts, samples[way]))
    direct = Way(0)

    def rank(way: Way) -> tuple:
        return way.io_nodes, (way.scheduler, way.assign) != DEFAULTS, seconds(amounts, samples[way])

    # Where there are too few repetitions for an interval, nothing can be told apart, and the medians decide.
    same = [
        way
        for way in ways
        if (ratio := times_faster(amounts, samples[way], samples[best])).low is not None and not ratio.distinct
    ]
    advice.way = chosen = min(same, key=rank) if same else best
    for way in ways:
        gain = times_faster(amounts, samples[direct], samples[way]) if direct in samples and way != direct else None
        advice.ways.append((way, seconds(amounts, samples[way]), gain))
    if direct in samples:
        advice.gain = times_faster(amounts, samples[direct], samples[chosen])
    return chosen, best


def describe(
    advice: ForwardingAdvice,
    way: Way,
    best: Way,
    phases: list[Phase],
    near: list[tuple[Phase, Near]],
    explorations: list[Exploration],
) -> None:
    gain, words, cautions, count = advice.gain, advice.words, advice.cautions, len(advice.ways)
    first = explorations[0].setting
    if way.io_nodes == 0:
        words.append(
            f"Do not forward: no number of I/O nodes was measurably faster in {first.directory} ({first.file_system}) "
            f"than none, for patterns like the program's."
            if count > 1
            else "Only runs without I/O nodes were measured: there is nothing to choose from."
        )
    else:
        words.append(f"Forward through {way.words}.")
        if gain:
            words.append(
                f"Reads and writes should then be {gain.words} as fast as without I/O nodes, if the program behaves like "
                f"the measured patterns."
            )
        else:
            cautions.append("Nothing was measured without I/O nodes: whether forwarding gains anything is not known.")
    if best != way:
        words.append(
            f"The median of {best.words} is better, but the repetitions cannot tell the two apart. Of such ways, the "
            f"one with the fewest I/O nodes is recommended, and among these the default scheduler."
        )
    if advice.covered < 0.999:
        cautions.append(
            f"The near patterns stand for {advice.covered:.0%} of the program's bytes; the rest was not measured."
        )
    for phase, found in near:
        number = phases.index(phase) + 1
        if not found.distance.close:
            cautions.append(
                f"The nearest pattern to phase {number} is not close (distance {found.distance.value:.2f}): "
                f"{found.distance.words}."
            )
        what = found.pattern.phases[found.phase]
        if what.operation != "write" and not what.direct:
            cautions.append(
                f"Reads for phase {number} were measured without O_DIRECT: part of them may have come from a page cache."
            )
        if what.fsync != phase.fsync:
            cautions.append(
                f"Phase {number} was measured with{'' if what.fsync else 'out'} fsync, and the program "
                f"{'uses' if phase.fsync else 'does not use'} it."
            )
    repetitions = min(
        (ratio.repetitions for _, _, ratio in advice.ways if ratio), default=gain.repetitions if gain else 0
    )
    if gain and gain.thin or repetitions and repetitions < ENOUGH:
        cautions.append(
            f"There are only {repetitions} repetitions, and {ENOUGH} are the least for a sound interval: "
            f"continue the exploration."
        )
    if count > 2 and gain and way.io_nodes:
        cautions.append(
            f"The best of {count} ways was chosen by the same runs that the gain is computed from: "
            f"expect rather less than more."
        )
    for exploration in explorations:
        failed, unverified = len(exploration.failures), len(exploration.unverified())
        # A run whose phase transferred nothing counts as failed here.
        failed += len(exploration.usable()) - len(usable(exploration))
        if failed or unverified:
            cautions.append(
                f"{exploration.source}: {counted(failed, 'run')} failed and {unverified} were not verified; "
                f"they are left out."
            )
    if len(set(explorations[0].nodes)) == 1:
        cautions.append(
            "All processes and I/O nodes of the measurement were on one host: between hosts the result can be another."
        )
