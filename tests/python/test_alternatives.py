"""What LCG3's alternatives cost: entropies in the order that theory demands, on a small made-up cache."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from codec_cases import kv_like
from llama_cachegen.codec import LMCACHE, Archive, Kind, Plane, encode
from llama_cachegen.codec.sizes import archive_sizes
from llama_cachegen.errors import CachegenError
from llama_cachegen.evaluate import alternatives, symbol_models
from llama_cachegen.evaluate.alternatives import Rope, Section
from llama_cachegen.ggml_types import GgmlType
from llama_cachegen.page_identity import RopeIdentity

N_TOKENS, N_CHANNELS, N_LAYERS, HEAD_SIZE = 600, 64, 12, 32
EXACT, CODED, TABLES, SUM = "exact probabilities", "10 bits", "tables", "10 bits and tables"


def rope_identity(**changes: float) -> RopeIdentity:
    fields: dict[str, float] = dict(
        rope_type=0,
        n_ctx_orig_yarn=2048,
        freq_base=10000.0,
        freq_scale=1.0,
        yarn_ext_factor=0.0,
        yarn_attn_factor=1.0,
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
    )
    return RopeIdentity(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rope() -> Rope:
    found = Rope.of(rope_identity(), np.arange(N_TOKENS, dtype=np.float64), HEAD_SIZE, HEAD_SIZE)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def planes(rope: Rope) -> list[Plane]:
    rng = np.random.default_rng(1)
    made = []
    for layer, kind in itertools.product(range(N_LAYERS), (Kind.K, Kind.V)):
        values = kv_like(rng, N_TOKENS, N_CHANNELS)
        if kind is Kind.K:
            values = rope.rotated(values + rng.normal(0, 4, N_CHANNELS).astype(np.float32))
        made.append(Plane(values.astype(np.float16), GgmlType.F16, N_CHANNELS, layer=layer, kind=kind))
    return made


@pytest.fixture(scope="module")
def sections(planes: list[Plane], rope: Rope) -> dict[str, Section]:
    stages: list[str] = []
    found = alternatives.alternatives_of(planes, N_LAYERS, rope=rope, progress=stages.append)
    assert len(stages) == len(found)
    return {section.key: section for section in found}


def test_sections(sections: dict[str, Section]) -> None:
    assert list(sections) == [
        "contexts", "training", "probability_bits", "look_up", "blocks", "scales", "scaling", "rope", "others"
    ]  # fmt: skip
    for section in sections.values():
        names = [row.name for row in section.rows]
        assert len(set(names)) == len(names)
        for row in section.rows:
            assert len(row.figures) == len(section.columns)
            assert all(figure is None or (math.isfinite(figure) and figure >= 0) for figure in row.figures)


def test_more_context_never_costs_more_with_exact_probabilities(sections: dict[str, Section]) -> None:
    contexts = sections["contexts"]

    def exact(name: str) -> float:
        return contexts.figure(name, EXACT)

    for n in (16, 32, 64):
        mark = " (LCG3)" if n == 32 else ""
        full, nine = (
            exact(f"token before, every symbol a class, {n} models"),
            exact(f"token before in 9 classes, {n} models{mark}"),
        )
        assert full <= nine
    # one model a channel is the least that order 0 can cost
    for n in (16, 64, 256):
        assert exact("order 0, one model a channel") <= exact(f"order 0, {n} models") + 1e-9
    two, one = "two tokens before, 9 classes each, 32 models", "token before in 9 classes, 32 models (LCG3)"
    assert exact(two) <= exact(one) + 0.01  # one token fewer is counted


def test_rounded_probabilities_cost_more_and_tables_add_up(sections: dict[str, Section]) -> None:
    for key in ("contexts", "training", "rope"):
        for row in sections[key].rows:
            ideal, coded, tables, total = row.figures
            if coded is None or tables is None or total is None:
                continue
            assert ideal is None or ideal <= coded + 1e-9
            assert total == pytest.approx(coded + tables)


def test_more_probability_bits_cost_less(sections: dict[str, Section]) -> None:
    section = sections["probability_bits"]
    for column in ("symbols", "of them, lost by rounding"):
        figures = [row.figures[section.columns.index(column)] for row in section.rows]
        assert figures == sorted(figures, reverse=True)  # type: ignore[type-var]


def test_shorter_blocks_have_more_states(sections: dict[str, Section]) -> None:
    section = sections["blocks"]
    for column in ("first states", "unit headers"):
        figures = [row.figures[section.columns.index(column)] for row in section.rows]
        assert figures == sorted(figures, reverse=True)  # type: ignore[type-var]
    for row in section.rows:
        *parts, whole = row.figures
        assert sum(part or 0 for part in parts) == pytest.approx(whole, abs=0.001)  # padding around exact rows


def test_counted_cost_is_that_of_the_archive(planes: list[Plane]) -> None:
    """Classes, shared models, frequencies and table sizes are the encoder's."""
    profile = dataclasses.replace(LMCACHE, n_models=4, n_sample_tokens=0)
    data = encode(planes, profile, n_layers=N_LAYERS)
    with Archive(data) as archive:
        sizes = archive_sizes(data, archive).sections()
    counted, fixed_bytes = symbol_models.Cost(0.0, 0.0, 0.0), 0
    for one in alternatives._Data(planes, N_LAYERS, None).sets:
        pairs = symbol_models.by_class(one.pairs, one.classes(profile.n_classes))
        counted = counted.plus(symbol_models.model_cost(pairs, one.models(4)))
        fixed_bytes += 8 + 5 * one.n_symbols
    assert sizes["tables"] == pytest.approx(counted.tables / 8 + fixed_bytes, rel=0.01)
    # left for each channel: about 24 bits of its first state's 32, and its first symbol
    n_channels = N_CHANNELS * len(planes)
    rest = (8 * (sizes["words"] + sizes["states"]) - counted.coded) / n_channels
    assert 24 < rest < 31


def test_knowledge_of_rope_is_used(sections: dict[str, Section]) -> None:
    """The made-up keys have means that turn with the position."""
    rope = sections["rope"]
    by_mean = rope.figure("rotated mean in 31 classes, 16 models", EXACT)
    assert by_mean < rope.figure("token before in 9 classes, 16 models", EXACT) - 0.1
    scaling = sections["scaling"]
    assert scaling.figure("one a token, RoPE undone", "K, order 0") < scaling.figure("one a token (LCG3)", "K, order 0")


def test_tables_of_tiles_cost_what_they_have_to(sections: dict[str, Section]) -> None:
    tiles = -(-N_TOKENS // 256)
    tables = sections["others"].figure("LCG1: order 0, a table a channel and 256 tokens", "tables")
    assert tables == pytest.approx(16 * 33 * tiles / N_TOKENS)


@pytest.mark.parametrize("rope_type", [0, 2])
def test_rope_undone(rope_type: int) -> None:
    rng = np.random.default_rng(2)
    positions = np.arange(50, dtype=np.float64)
    rope = Rope.of(rope_identity(rope_type=rope_type), positions, 8, 4)
    assert rope is not None
    values = rng.normal(size=(50, 16)).astype(np.float32)
    rotated = rope.rotated(values)
    np.testing.assert_allclose(rope.rotated(rotated, undo=True), values, atol=1e-5)
    np.testing.assert_array_equal(rotated[0], values[0])
    # channels 4 to 7 of each head of 8 are not rotated; pair 0 turns by one radian a token
    np.testing.assert_array_equal(rotated.reshape(50, 2, 8)[:, :, 4:], values.reshape(50, 2, 8)[:, :, 4:])
    a, b = (values[3, 0], values[3, 1]) if rope_type == 0 else (values[3, 0], values[3, 2])
    assert rotated[3, 0] == pytest.approx(a * math.cos(3) - b * math.sin(3), abs=1e-5)
    assert rotated[3, 1 if rope_type == 0 else 2] == pytest.approx(a * math.sin(3) + b * math.cos(3), abs=1e-5)


@pytest.mark.parametrize("changes", [{"rope_type": 8}, {"yarn_ext_factor": 1.0}])
def test_other_rotations_are_left_out(changes: dict[str, float]) -> None:
    assert Rope.of(rope_identity(**changes), np.arange(4.0), 8, 8) is None


def test_frequencies() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 1000, (40, 31)) ** 3
    counts[0] = 0
    counts[1] = 0
    counts[1, 5] = 10**9
    for bits in (6, 8, 10, 12):
        frequencies = symbol_models.make_frequencies(counts, bits)
        assert (frequencies.sum(axis=1) == 1 << bits).all()
        assert (frequencies >= 1).all()
    assert symbol_models.make_frequencies(counts, 10)[1, 5] == 1024 - 30


def test_classes_are_neighbours() -> None:
    counts = np.array([0, 1, 5, 30, 100, 200, 100, 30, 5, 1, 0])
    classes = symbol_models.choose_classes(counts, 5)
    assert classes[0] == 0
    assert set(np.diff(classes)) <= {0, 1}
    assert classes.max() < 5


def test_two_kinds_of_channels_are_told_apart() -> None:
    rng = np.random.default_rng(4)
    kind = rng.integers(0, 2, 40)
    symbols = np.where(kind, rng.integers(0, 3, (500, 40)), rng.integers(3, 7, (500, 40)))
    zeros = np.zeros_like(symbols)
    histogram = symbol_models.count([zeros], [symbols], 1, 7)
    models = symbol_models.clustered(histogram[:, 0], [histogram], 2)
    assert len(set(zip(kind.tolist(), models.tolist(), strict=True))) == 2


@pytest.mark.parametrize("n_sampled", [32, 100, 1024, 5000])
def test_sample_is_within_the_page(n_sampled: int) -> None:
    chunks = symbol_models.sampled_chunks(1000, n_sampled)
    tokens = np.concatenate([np.arange(1000)[chunk] for chunk in chunks])
    assert len(set(tokens.tolist())) == len(tokens)
    if n_sampled >= 1000:
        assert len(tokens) == 1000


def test_refusals(planes: list[Plane]) -> None:
    with pytest.raises(CachegenError, match="F16"):
        alternatives.alternatives_of([], N_LAYERS)
    f32 = Plane(np.zeros((32, 64), np.float32), GgmlType.F32, 64)
    with pytest.raises(CachegenError, match="F16"):
        alternatives.alternatives_of([f32], N_LAYERS)
    few = [Plane(plane.data[:8], GgmlType.F16, N_CHANNELS, layer=plane.layer, kind=plane.kind) for plane in planes]
    with pytest.raises(CachegenError, match="8 tokens"):
        alternatives.alternatives_of(few, N_LAYERS)


def test_markers() -> None:
    page = f"before\n{alternatives.MARKER_BEGIN}\nold\n{alternatives.MARKER_END}\nafter\n"
    new = alternatives.put_between_markers(page, "new\n")
    assert new == f"before\n{alternatives.MARKER_BEGIN}\n\nnew\n\n{alternatives.MARKER_END}\nafter\n"
    assert alternatives.put_between_markers(new, "new") == new
    for broken in ("", "only text", f"{alternatives.MARKER_END}{alternatives.MARKER_BEGIN}"):
        with pytest.raises(CachegenError, match="needs the lines"):
            alternatives.put_between_markers(broken, "new")


def test_markdown_and_json(sections: dict[str, Section]) -> None:
    from llama_cachegen.evaluate.report import ModelFile, Setting
    from llama_cachegen.evaluate.texts import Text

    text = Text.of("made up", "secret words", "nothing")
    report = alternatives.AlternativesReport(
        Setting.here(), ModelFile("none.gguf", "00"), text, N_TOKENS, tuple(sections.values())
    )
    page = report.markdown()
    assert all(f"### {section.title}" in page for section in sections.values())
    document = json.dumps(report.as_dict(), allow_nan=False)
    assert "secret" not in document
