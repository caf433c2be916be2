"""What the page shows, in the order it shows it, with nothing left to compute.

Drawings that are alike are kept once: layers point to them by number. Ids in the page are numbers
too, and never made from a name.

What lives here: `Page` and its parts, made from an `Optimization`. What never does: markup.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..optimizing.results import ORIGINAL, AxisFacts, LayerResult, Optimization, Trial
from . import conclusions, drawings
from .bars import Bar, Scale
from .figures import Unit

_FEW = 4
"""Up to so many layers are all shown open."""
_PRINTED = 60
"""Up to so many layers are all printed open; of more, those that the reader opened."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trial as a row: `unit` is that of its whole table."""

    trial: Trial
    bar: Bar | None
    unit: Unit
    is_chosen: bool
    is_original: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing and the axes of a layer it stands for; `number` is that of its one copy."""

    number: int
    axes: tuple[int, ...]
    drawing: drawings.Drawing

    @property
    def title(self) -> str:
        """Which axes these are, counted from the first spatial one."""
        if len(self.axes) == 1:
            return f"Axis {self.axes[0]}"
        return f"Axes {', '.join(map(str, self.axes[:-1]))} and {self.axes[-1]}, which are alike"


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer; `before` and `after` are its bars in the overview, on one scale for all."""

    number: int
    layer: LayerResult
    state: conclusions.State
    original: Trial | None
    chosen: Trial | None
    before: Bar | None
    after: Bar | None
    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(N, C, *size)."""
        return (self.layer.batch, self.layer.in_channels, *(a.size for a in self.layer.axes))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, C, *out)."""
        return (self.layer.batch, self.layer.out_channels, *(a.out for a in self.layer.axes))


@dataclass(frozen=True, slots=True)
class Part:
    """The whole model's bar, before or after, and how much of it deconvolutions are."""

    name: str
    bar: Bar
    inner: float | None


@dataclass(frozen=True, slots=True)
class Page:
    """Everything."""

    found: Optimization
    speed: conclusions.Conclusion
    proof: conclusions.Conclusion
    written: str
    share: str | None
    parts: tuple[Part, ...]
    layers: tuple[LayerView, ...]
    figures: tuple[drawings.Drawing, ...]
    opened: bool
    printed: bool


@dataclass
class _Gallery:
    """Drawings by what they draw, each made once."""

    numbers: dict[AxisFacts, int] = field(default_factory=dict)
    made: list[drawings.Drawing] = field(default_factory=list)

    def figures(self, axes: tuple[AxisFacts, ...]) -> tuple[Figure, ...]:
        """A figure per kind of axis of one layer."""
        places: dict[AxisFacts, list[int]] = {}
        for place, axis in enumerate(axes):
            places.setdefault(axis, []).append(place)
        return tuple(self._figure(axis, tuple(where)) for axis, where in places.items())

    def _figure(self, axis: AxisFacts, places: tuple[int, ...]) -> Figure:
        if axis not in self.numbers:
            self.numbers[axis] = len(self.made)
            self.made.append(drawings.drawn(axis))
        number = self.numbers[axis]
        return Figure(number, places, self.made[number])


def page(found: Optimization) -> Page:
    """The page of an optimisation."""
    gallery = _Gallery()
    scale = Scale.of(
        trial.timing
        for layer in found.layers
        for trial in (layer.trial(ORIGINAL), layer.trial(layer.chosen))
        if trial
    )
    layers = tuple(_layer(n, each, gallery, scale) for n, each in enumerate(found.layers, 1))
    return Page(
        found,
        conclusions.speed(found),
        conclusions.proof(found),
        conclusions.written(found),
        conclusions.share(found),
        _parts(found),
        layers,
        tuple(gallery.made),
        opened=len(layers) <= _FEW,
        printed=len(layers) <= _PRINTED,
    )


def _layer(number: int, layer: LayerResult, gallery: _Gallery, scale: Scale) -> LayerView:
    original, chosen = layer.trial(ORIGINAL), layer.trial(layer.chosen)
    return LayerView(
        number,
        layer,
        conclusions.state(layer),
        original,
        chosen,
        _bar(original, scale),
        _bar(chosen, scale),
        _rows(layer),
        gallery.figures(layer.axes),
    )


def _bar(trial: Trial | None, scale: Scale) -> Bar | None:
    return scale.bar(trial.timing) if trial and trial.timing else None


def _rows(layer: LayerResult) -> tuple[Row, ...]:
    scale = Scale.of(trial.timing for trial in layer.trials)
    unit = Unit.of(*(trial.timing.median for trial in layer.trials if trial.timing))
    return tuple(
        Row(
            trial,
            _bar(trial, scale),
            unit,
            is_chosen=trial.rewriting == layer.chosen,
            is_original=trial.rewriting == ORIGINAL,
        )
        for trial in layer.trials
    )


def _parts(found: Optimization) -> tuple[Part, ...]:
    if found.whole is None:
        return ()
    after = "After" if found.rewritten or found.prepared else "Tried"
    timings = {"Before": found.whole.before, after: found.whole.after}
    scale = Scale.of(timings.values())
    inner = found.share() or (None, None)
    return tuple(
        Part(name, scale.bar(timing), _inner(timing.median, seconds, scale))
        for (name, timing), seconds in zip(timings.items(), inner, strict=True)
    )


def _inner(whole: float, seconds: float | None, scale: Scale) -> float | None:
    """The deconvolutions within a bar; alone they may take longer than the whole."""
    return None if seconds is None else scale.percent(min(seconds, whole))
