"""The command line on files of every format: inspect, verify, transcode."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from click.testing import CliRunner, Result
from codec_cases import kv_like, native_rows, random_planes
from llama_cachegen import codec, file_checks
from llama_cachegen.archive_file import ARCHIVE_MAGIC, ArchiveFile, write_archive_file
from llama_cachegen.cli import cli
from llama_cachegen.codec import Archive, Kind, Mode, Plane
from llama_cachegen.codec.reference.ckg1 import Ckg1Kind, Ckg1Part, encode_ckg1
from llama_cachegen.codec.reference.tiles import encode_tile
from llama_cachegen.codec.sizes import archive_sizes
from llama_cachegen.errors import CachegenError, TranscodeError, UnknownFileError
from llama_cachegen.file_kinds import FileKind, kind_of, kind_of_bytes
from llama_cachegen.ggml_types import GgmlType
from llama_cachegen.layer_bars import bar, layer_lines
from llama_cachegen.page import ComponentKind, Page, PageComponent
from llama_cachegen.page_file import MAGIC as PAGE_MAGIC
from llama_cachegen.page_identity import ARCHIVE_FORMAT, with_format
from test_page_file import IDENTITY, UNKNOWN_TYPE
from test_page_file import make_page as random_page

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "lmcache"
N_TOKENS = 70
NAMES = ["page", "archive-page", "lcg3", "exact", "ckg1", "lcg1", "lcg2", "lmcache"]


def make_page(seed: int = 0, n_tokens: int = N_TOKENS, n_layers: int = 3, n_channels: int = 64) -> Page:
    """A page of values like a cache's: K rows of F16, V of Q8_0, in the last layer transposed F16."""
    rng = np.random.default_rng(seed)
    payload = bytearray()
    components = []
    for layer in range(n_layers):
        for kind in (ComponentKind.K, ComponentKind.V):
            transposed = kind is ComponentKind.V and layer == n_layers - 1
            type_ = GgmlType.F16 if kind is ComponentKind.K or transposed else GgmlType.Q8_0
            rows = native_rows(kv_like(rng, n_tokens, n_channels), type_)
            data = rows.view("u2").T.tobytes() if transposed else rows.tobytes()
            components.append(
                PageComponent(
                    layer=layer,
                    kind=kind,
                    type=int(type_),
                    transposed=transposed,
                    n_rot=64 if type_ is GgmlType.Q8_0 else 0,
                    n_tokens=n_tokens,
                    n_channels=n_channels,
                    row_bytes=type_.row_bytes(n_channels),
                    offset=len(payload),
                    n_bytes=len(data),
                    xxh3=xxhash.xxh3_64_intdigest(data),
                )
            )
            payload += data + bytes(-len(data) % 64)
    return Page(
        identity=IDENTITY, pos_begin=0, tokens=list(range(n_tokens)), components=components, payload=bytes(payload)
    )


def write_archive_page(path: Path, page: Page, profile: str) -> Path:
    write_archive_file(
        path,
        codec.encode_page(page, profile),
        identity=with_format(page.identity, ARCHIVE_FORMAT),
        pos_begin=page.pos_begin,
        tokens=page.tokens,
        is_exact=profile == "exact",
    )
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of every format."""
    rng = np.random.default_rng(1)
    page_path = tmp_path_factory.mktemp("made") / "a.page"
    page = make_page()
    page.write(page_path)
    archive_path = page_path.with_suffix(".archive")
    write_archive_page(archive_path, page, "balanced")
    values = kv_like(rng, 40, 32)
    return {
        "page": page_path.read_bytes(),
        "archive-page": archive_path.read_bytes(),
        "lcg3": codec.encode(random_planes(2, N_TOKENS), "balanced"),
        "exact": codec.encode(random_planes(2, N_TOKENS), "exact"),
        "ckg1": encode_ckg1(
            [
                Ckg1Part(Ckg1Kind.F16_ROWS, values),
                Ckg1Part(Ckg1Kind.Q8_0_ROWS, values, 16),
                Ckg1Part(Ckg1Kind.F32_TRANSPOSED, values),
                Ckg1Part(Ckg1Kind.EXACT, b"indexer"),
            ],
            tile_tokens=16,
        ),
        "lcg1": encode_tile(values, 32, 1),
        "lcg2": encode_tile(values, 16, 2),
        "lmcache": (GOLDEN / "a_l4_t32_c64_f16" / "container.pickle").read_bytes(),
    }


@pytest.fixture
def files(made: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.bin" for name in made}
    for name, path in paths.items():
        path.write_bytes(made[name])
    return paths


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


def fails(*arguments: object) -> str:
    """The message of a command that has to fail with one of our errors, or the system's."""
    result = run(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, (CachegenError, OSError)), result.exception
    message = str(result.exception)
    assert "\n" not in message
    return message


def entries(folder: Path) -> set[str]:
    return set(os.listdir(folder))


# which format


def test_kinds(files: dict[str, Path]) -> None:
    for name, path in files.items():
        assert kind_of(path).value == ("lcg3" if name == "exact" else name)
    assert kind_of_bytes(b"") is None and kind_of_bytes(b"LCG") is None and kind_of_bytes(b"lcg3") is None
    assert kind_of_bytes(PAGE_MAGIC[:3]) is FileKind.PAGE
    assert kind_of_bytes(ARCHIVE_MAGIC[:4]) is kind_of_bytes(ARCHIVE_MAGIC + b"x") is FileKind.ARCHIVE_PAGE
    assert kind_of_bytes(b"\x89LKB") is None and kind_of_bytes(ARCHIVE_MAGIC[:7] + b"x") is None
    assert kind_of_bytes(b"\x80\x09") is None and kind_of_bytes(b"\x80\x02") is FileKind.LMCACHE
    assert len({kind.title for kind in FileKind}) == len(FileKind)


@pytest.mark.parametrize("command", ["inspect", "transcode"])
def test_wrong_files(command: str, tmp_path: Path) -> None:
    more = [tmp_path / "out"] if command == "transcode" else []
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"GGUF\x03\0\0\0 and more than sixteen bytes")
    message = fails(command, wrong, *more)
    assert str(wrong) in message and "47 47 55 46 03" in message
    assert all(kind.title in message for kind in FileKind)

    wrong.write_bytes(b"")
    assert "is empty" in fails(command, wrong, *more)
    assert "is a folder" in fails(command, tmp_path, *more)
    assert "missing" in fails(command, tmp_path / "missing", *more)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "not a regular file" in fails(command, fifo, *more)
    assert entries(tmp_path) == {"wrong", "fifo"}


def test_errors_are_one_line_and_exit_code_1(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"no format")
    for arguments in (["inspect", str(wrong)], ["transcode", str(wrong), str(tmp_path / "out")]):
        result = subprocess.run(
            [sys.executable, "-m", "llama_cachegen", *arguments], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 1 and result.stdout == ""
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
        assert "6e 6f 20 66" in result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_truncated(name: str, files: dict[str, Path], made: dict[str, bytes]) -> None:
    for n_bytes in (len(made[name]) - 1, len(made[name]) // 2, 20, 4):
        files[name].write_bytes(made[name][:n_bytes])
        assert str(files[name]) in fails("inspect", files[name])
        report = run_json("verify", files[name])[str(files[name])]
        assert not report["ok"] and report["error"]


# inspect


def test_inspect_page(files: dict[str, Path], made: dict[str, bytes]) -> None:
    report = run_json("inspect", files["page"])
    assert report["kind"] == "page" and report["file_bytes"] == len(made["page"])
    assert report["n_tokens"] == N_TOKENS and report["identity"]["model_name"] == "tiny.gguf"
    assert [row["type"] for row in report["components"]] == ["f16", "q8_0"] * 2 + ["f16", "f16"]
    text = run("inspect", files["page"]).stdout
    assert "format: page file" in text and "transposed" in text


@pytest.mark.parametrize("profile", ["balanced", "exact"])
def test_inspect_archive_page(profile: str, tmp_path: Path) -> None:
    path = write_archive_page(tmp_path / "a", make_page(), profile)
    report = run_json("inspect", path)
    assert report["kind"] == "archive-page" and report["file_bytes"] == path.stat().st_size
    assert report["identity"]["model_name"] == "tiny.gguf" and report["identity"]["format"] == "lcg3/1"
    assert report["n_tokens"] == N_TOKENS and report["pos_begin"] == 0
    assert report["profile"] == profile and report["is_exact"] == (profile == "exact")
    assert sum(report["bytes"].values()) == report["file_bytes"] == report["archive_bytes"] + report["bytes"]["page"]
    assert report["bits_per_value"] == 8 * report["file_bytes"] / report["n_values"]
    assert report["native_bytes"] == sum(component.n_bytes for component in make_page().components)

    bare = tmp_path / "bare"
    assert run("transcode", path, bare, "--bare").exit_code == 0
    of_archive = run_json("inspect", bare)
    for key in ("planes", "layers", "n_blocks", "n_sets", "native_bytes", "n_exact_tokens"):
        assert report[key] == of_archive[key]

    text = run("inspect", path).stdout
    for words in (
        "format: archive page file",
        "model_name: tiny.gguf",
        "format: lcg3/1",
        "positions: 0 .. 69",
        f"profile: {profile}, {'lossless' if profile == 'exact' else 'lossy'}",
        "header, identity and tokens",
        "layer by layer",
    ):
        assert words in text


@pytest.mark.parametrize("name", ["lcg3", "exact"])
def test_inspect_lcg3(name: str, files: dict[str, Path], made: dict[str, bytes]) -> None:
    report = run_json("inspect", files[name])
    assert report["kind"] == "lcg3" and report["n_tokens"] == N_TOKENS
    assert report["profile"] == {"lcg3": "balanced", "exact": "exact"}[name]
    assert report["is_exact"] == (name == "exact")
    assert sum(report["bytes"].values()) == report["file_bytes"] == len(made[name])
    assert all(n_bytes >= 0 for n_bytes in report["bytes"].values())
    assert report["bits_per_value"] == 8 * len(made[name]) / report["n_values"]
    assert report["n_values"] == 10 * N_TOKENS * 64
    assert len(report["planes"]) == 10 and [row["layer"] for row in report["layers"]] == list(range(5))
    n_coded = N_TOKENS - report["n_exact_tokens"]
    for plane in report["planes"]:
        assert sum(plane["bytes"].values()) == plane["payload_bytes"]
        assert 0 <= plane["bytes"]["overhead"] < 64
        assert report["layers"][plane["layer"]][plane["kind"]] == 8 * plane["payload_bytes"] / (n_coded * 64)
    assert all(row["AUX"] is None for row in report["layers"])


def test_inspect_text_of_lcg3(files: dict[str, Path]) -> None:
    text = run("inspect", files["lcg3"]).stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 and "\x1b" not in text
    assert lines[0].startswith("format: LCG3 archive")
    for words in ("profile: balanced, lossy", "probability tables", "scales", "words of the entropy", "exact rows"):
        assert words in text
    picture = lines[lines.index(next(line for line in lines if line.startswith("layer by layer"))) + 1 :]
    assert len(picture) == 6
    assert all("█" in line for line in picture[1:])


def test_sizes_agree_with_the_library() -> None:
    aux = dataclasses.replace(random_planes(5, 300, types=[GgmlType.F16])[0], kind=Kind.AUX, layer=7)
    planes = [*random_planes(4, 300, n_channels=96), aux]
    for profile in codec.PROFILES.values():
        data = codec.encode(planes, dataclasses.replace(profile, block_tokens=64))
        with Archive(data) as archive:
            sizes = archive_sizes(data, archive)
            assert sum(sizes.sections().values()) == len(data)
            for plane, of_plane in zip(archive.planes, sizes.planes, strict=True):
                assert of_plane.words == plane.symbol_bytes and sum(of_plane) == plane.payload_bytes
                assert 0 <= of_plane.overhead <= archive.info.n_blocks * (8 + 4 * 3 + 15)
                assert of_plane.states == 4 * plane.n_channels * archive.info.n_blocks
                assert (of_plane.scales > 0) == (plane.mode is Mode.LOSSY or plane.type.block_size > 1)


def test_inspect_only_exact_rows(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(codec.encode(random_planes(2, 3), "balanced"))
    report = run_json("inspect", path)
    assert report["n_blocks"] == 0 and report["bytes"]["exact_rows"] > 0 and report["bytes"]["words"] == 0
    assert sum(report["bytes"].values()) == report["file_bytes"]
    assert report["layers"][0]["K"] is None
    assert "layer by layer" not in run("inspect", path).stdout
    assert run("verify", "--decode", path).exit_code == 0


def test_inspect_the_others(files: dict[str, Path], made: dict[str, bytes]) -> None:
    report = run_json("inspect", files["ckg1"])
    assert report["n_records"] == len(report["records"]) == 10
    assert report["page_bytes"] == 40 * 32 * 2 + 40 * 34 + 40 * 32 * 4 + 7
    assert [row["kind"] for row in report["kinds"]] == ["f16_rows", "exact", "f32_transposed", "q8_0_rows"]
    assert "10 records" in run("inspect", files["ckg1"]).stdout
    for name in ("lcg1", "lcg2"):
        report = run_json("inspect", files[name])
        assert (report["n_tokens"], report["n_channels"], report["version"]) == (40, 32, int(name[-1]))
        assert "bins" in run("inspect", files[name]).stdout
    report = run_json("inspect", files["lmcache"])
    assert (report["n_layers"], report["n_tokens"], report["value_type"]) == (4, 32, "float16")
    assert sum(report["bytes"].values()) == report["file_bytes"] == len(made["lmcache"])
    lines = run("inspect", files["lmcache"]).stdout.splitlines()
    assert len([line for line in lines if "█" in line]) == 4 and max(map(len, lines)) <= 80


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "evil"
    path.write_bytes(b"\x80\x04cos\nsystem\n(X" + len(f"touch {victim}").to_bytes(4, "little"))
    path.write_bytes(path.read_bytes() + f"touch {victim}".encode() + b"tR.")
    assert "system" in fails("inspect", path)
    assert run("verify", "--decode", path).exit_code == 1
    assert not victim.exists()


# the picture


def test_bars() -> None:
    assert [bar(fraction, 4) for fraction in (0, 1e-9, 1 / 8, 0.5, 1, 9)] == ["", "▏", "▌", "██", "████", "████"]
    assert bar(0.5, 4, ascii_only=True) == "##" and bar(float("nan"), 4) == ""


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_layer_lines(columns: int) -> None:
    layers = [{"layer": i, "K": 5 - i / 10, "V": 2.5 if i else None, "AUX": None} for i in range(32)]
    lines = layer_lines(layers, columns=columns)
    assert len(lines) == 33 and max(map(len, lines)) <= columns
    lengths = [line.split()[2].count("█") for line in lines[2:]]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < lengths[0]
    assert lines[1].endswith(" -") and "5.00" in lines[1]
    assert all(line.isascii() for line in layer_lines(layers, ascii_only=True))
    styled = layer_lines(layers, style=lambda text, kind: f"<{kind}>{text}")
    assert "<K>█" in styled[1] and "<V>█" in styled[2]
    with_aux = layer_lines([{"layer": -(2**31), "K": 1.0, "V": 2.0, "AUX": 123.0}], columns=80)
    assert len(with_aux[1]) <= 80 and "123.00" in with_aux[1]
    assert layer_lines([{"layer": 0, "K": None, "V": None, "AUX": None}]) == []


# verify


@pytest.mark.parametrize("decode", [False, True])
def test_verify(decode: bool, files: dict[str, Path]) -> None:
    options = ["--decode", "--threads", "2"] if decode else []
    result = run("verify", *options, *files.values())
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == len(NAMES) and all(line.endswith(": ok") for line in lines)
    assert ("decoded" in result.stdout) == decode
    report = run_json("verify", *options, *files.values())
    assert list(report) == [str(path) for path in files.values()]
    assert {row["kind"] for row in report.values()} == {kind.value for kind in FileKind}
    assert all(row["ok"] and row["checked"] and row["error"] is None for row in report.values())


@pytest.mark.parametrize("name", ["page", "archive-page", "lcg3", "exact"])
def test_verify_finds_damage(name: str, files: dict[str, Path], made: dict[str, bytes]) -> None:
    damaged = bytearray(made[name])
    damaged[-40 if name != "page" else -1] ^= 1
    files[name].write_bytes(damaged)
    result = run("verify", files["ckg1"], files[name], files["lcg1"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].endswith(": ok") and lines[2].endswith(": ok")
    assert str(files[name]) in lines[1] and not lines[1].endswith("ok")


def test_verify_finds_damage_anywhere_in_an_archive_page(files: dict[str, Path], made: dict[str, bytes]) -> None:
    path, data = files["archive-page"], made["archive-page"]
    for offset in [*range(0, 1200, 101), *range(4096, len(data), 997), len(data) - 1]:
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        report = run_json("verify", path)[str(path)]
        assert not report["ok"] and str(path) in report["error"], offset


def test_an_archive_page_that_contradicts_its_archive(tmp_path: Path) -> None:
    page = make_page()
    archive = codec.encode_page(page, "balanced")
    identity = with_format(page.identity, ARCHIVE_FORMAT)
    path = tmp_path / "a"
    for tokens, is_exact, words in ((page.tokens, True, "lossless"), (page.tokens[:-1], False, "69 tokens")):
        write_archive_file(path, archive, identity=identity, pos_begin=0, tokens=tokens, is_exact=is_exact)
        for arguments in (["inspect", path], ["transcode", path, tmp_path / "out", "--profile", "fine"]):
            assert words in fails(*arguments)
        report = run_json("verify", path)[str(path)]
        assert words in report["error"] and str(path) in report["error"] and report["kind"] == "archive-page"
    assert entries(tmp_path) == {"a"}


def test_verify_needs_decode_for_streams(files: dict[str, Path], made: dict[str, bytes]) -> None:
    payload = bytearray(made["lcg2"])
    payload[16 + 4 * 40] = 0xFF  # symbols 15 of 16 bins: no encoder writes them
    files["lcg2"].write_bytes(payload)
    assert run("verify", files["lcg2"]).exit_code == 0
    assert run("verify", "--decode", files["lcg2"]).exit_code == 1


def test_verify_goes_on_after_what_is_no_file(files: dict[str, Path], tmp_path: Path) -> None:
    report = run_json("verify", tmp_path, tmp_path / "missing", files["page"])
    assert [row["ok"] for row in report.values()] == [False, False, True]
    assert [row["kind"] for row in report.values()] == [None, None, "page"]


def test_decode_in_small_scratch(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    decode = Archive.decode

    def counted(self: Archive, destinations: list[Plane | None], **more: int) -> None:
        calls.append(([i for i, plane in enumerate(destinations) if plane is not None], more["first_token"]))
        decode(self, destinations, **more)

    monkeypatch.setattr(Archive, "decode", counted)
    monkeypatch.setattr(file_checks, "MAX_SCRATCH_BYTES", 3 * 32 * 256)
    profile = dataclasses.replace(codec.BALANCED, block_tokens=32)
    files["lcg3"].write_bytes(codec.encode(random_planes(2, N_TOKENS), profile))
    assert run("verify", "--decode", files["lcg3"]).exit_code == 0
    for begin in (0, 4, 36, 68):  # exact rows and three blocks, each in two lots of planes
        assert sorted(i for planes, first in calls if first == begin for i in planes) == list(range(10))
    assert len(calls) == 8


# transcode


@pytest.mark.parametrize("profile", list(codec.PROFILES))
def test_page_to_archive_and_back(profile: str, files: dict[str, Path], tmp_path: Path) -> None:
    archive, back = tmp_path / "a.lcg3", tmp_path / "back.page"
    report = run_json("transcode", files["page"], archive, "--bare", "--profile", profile, "--threads", 2)
    with Page.open(files["page"]) as page:
        assert archive.read_bytes() == codec.encode_page(page, profile)
    assert (report["source_kind"], report["target_kind"], report["profile"]) == ("page", "lcg3", profile)
    assert report["target_bytes"] == archive.stat().st_size and report["source_bytes"] == files["page"].stat().st_size
    assert report["ratio"] == report["source_bytes"] / report["target_bytes"]
    assert report["n_values"] == 6 * N_TOKENS * 64 and report["seconds"] >= report["write_seconds"] > 0
    assert report["bits_per_value"] == 8 * report["target_bytes"] / report["n_values"]

    if profile != "exact":
        return
    assert run("transcode", archive, back, "--like", files["page"]).exit_code == 0
    assert back.read_bytes() == files["page"].read_bytes()


def test_default_profile_and_text(files: dict[str, Path], tmp_path: Path) -> None:
    for out, options, made in (("a", [], "archive page file"), ("a.lcg3", ["--bare"], "LCG3 archive")):
        result = run("transcode", files["page"], tmp_path / out, *options)
        assert result.exit_code == 0
        for words in ("page file", f"{made}, profile balanced", "ratio ", "bits a value", " s writing"):
            assert words in result.stdout
        assert result.stderr.startswith("note: ") if options else result.stderr == ""
        assert (tmp_path / out).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("profile", list(codec.PROFILES))
def test_page_to_archive_page(profile: str, files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "a"
    report = run_json("transcode", files["page"], out, "--profile", profile, "--threads", 2)
    assert (report["source_kind"], report["target_kind"], report["profile"]) == ("page", "archive-page", profile)
    assert report["target_bytes"] == out.stat().st_size and report["notes"] == []
    assert out.read_bytes() == write_archive_page(tmp_path / "b", make_page(), profile).read_bytes()
    assert run("verify", "--decode", out).exit_code == 0
    with Page.open(files["page"]) as page, ArchiveFile(out) as file:
        assert file.identity == with_format(page.identity, ARCHIVE_FORMAT) and file.pos_begin == page.pos_begin
        assert file.tokens.tolist() == page.tokens.tolist() and file.is_exact == (profile == "exact")


def test_archive_page_to_another_profile(tmp_path: Path) -> None:
    page = make_page()
    exact, out = write_archive_page(tmp_path / "exact", page, "exact"), tmp_path / "out"
    report = run_json("transcode", exact, out, "--profile", "fine")
    assert (report["source_kind"], report["target_kind"]) == ("archive-page", "archive-page")
    assert out.read_bytes() == write_archive_page(tmp_path / "expected", page, "fine").read_bytes()
    assert run("transcode", exact, out, "--profile", "fine", "--bare", "--force").exit_code == 0
    assert out.read_bytes() == codec.encode_page(page, "fine")

    fine = tmp_path / "expected"
    result = run("transcode", fine, out, "--profile", "balanced", "--force")
    assert result.exit_code == 0 and "errors add up" in result.stderr
    with ArchiveFile(out) as file, Archive(file.archive) as archive:
        file.check_archive(archive)
        assert archive.info.profile == "balanced" and file.tokens.tolist() == list(range(N_TOKENS))
    out.unlink()
    assert "lossy" in fails("transcode", fine, out, "--profile", "exact") and not out.exists()
    assert run("transcode", fine, out, "--profile", "exact", "--force").exit_code == 0
    with ArchiveFile(out) as file, Archive(file.archive) as archive:
        file.check_archive(archive)
        assert file.is_exact


@pytest.mark.parametrize("profile", ["balanced", "exact"])
def test_the_archive_alone(profile: str, tmp_path: Path) -> None:
    path, out = write_archive_page(tmp_path / "a", make_page(), profile), tmp_path / "out"
    report = run_json("transcode", path, out, "--bare")
    assert (report["target_kind"], report["profile"]) == ("lcg3", profile) and len(report["notes"]) == 1
    assert out.read_bytes() == codec.encode_page(make_page(), profile)
    assert report["n_values"] == 6 * N_TOKENS * 64 and report["n_tokens"] == N_TOKENS
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert str(path) in fails("transcode", path, out, "--bare", "--force")


def test_exact_archive_page_to_page(tmp_path: Path) -> None:
    page, out = make_page(), tmp_path / "out"
    path = write_archive_page(tmp_path / "a", page, "exact")
    report = run_json("transcode", path, out, "--threads", 2)
    assert (report["source_kind"], report["target_kind"], report["profile"]) == ("archive-page", "page", None)
    with Page.open(out, verify=True) as made:
        assert made.identity == page.identity and made.tokens.tolist() == page.tokens.tolist()
        assert made.pos_begin == page.pos_begin and not any(c.transposed for c in made.components)
        for i, (a, b) in enumerate(zip(made.components, page.components, strict=True)):
            same = dataclasses.replace(b, transposed=False, offset=a.offset, xxh3=a.xxh3)
            assert a == same and b.transposed == (i == 5)
            expected = page.numpy(i).T if b.transposed else page.numpy(i)
            np.testing.assert_array_equal(made.numpy(i).view("u1"), np.ascontiguousarray(expected).view("u1"))
    # with the page, its layout too
    page.write(tmp_path / "like")
    assert run("transcode", path, out, "--like", tmp_path / "like", "--force").exit_code == 0
    assert out.read_bytes() == (tmp_path / "like").read_bytes()


def test_page_in_rows_comes_back_byte_for_byte(tmp_path: Path) -> None:
    specs = [
        (layer, kind, int(number), False, 2)
        for layer, number in enumerate((GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0, GgmlType.Q4_0))
        for kind in (ComponentKind.K, ComponentKind.V)
    ]
    page = random_page(specs, list(range(-5, 36)), pos_begin=1000)
    # rotations have to divide the channels
    components = [dataclasses.replace(c, n_rot=c.n_channels if c.n_rot else 0) for c in page.components]
    page = Page(
        identity=page.identity,
        pos_begin=page.pos_begin,
        tokens=page.tokens,
        components=components,
        payload=bytes(page.payload),
    )
    source, archive, back = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    page.write(source)
    assert run("transcode", source, archive, "--profile", "exact").exit_code == 0
    assert run("transcode", archive, back).exit_code == 0
    assert back.read_bytes() == source.read_bytes()


def test_archive_pages_that_become_no_page(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = fails("transcode", files["archive-page"], out)
    for words in ("lossy (profile balanced)", "--profile", "--bare", str(files["archive-page"])):
        assert words in message
    assert "pass for exact" in fails("transcode", files["archive-page"], out, "--like", files["page"])

    page = make_page()
    exact, like = write_archive_page(tmp_path / "exact", page, "exact"), tmp_path / "like"
    for identity, tokens, pos_begin, words in (
        (msgspec.structs.replace(IDENTITY, namespace="other"), page.tokens, 0, "identity"),
        (page.identity, np.roll(page.tokens, 1), 0, "tokens"),
        (page.identity, page.tokens, 1, "positions"),
    ):
        Page(
            identity=identity,
            pos_begin=pos_begin,
            tokens=tokens,
            components=page.components,
            payload=bytes(page.payload),
        ).write(like)
        assert words in fails("transcode", exact, out, "--like", like)

    planes = random_planes(1, 3, types=[GgmlType.F16])
    aux = dataclasses.replace(planes[0], kind=Kind.AUX)
    later = dataclasses.replace(planes[0], data=planes[0].data[1:], first_token=1)
    for odd, words in (([aux, planes[1]], "auxiliary"), ([later, planes[1]], "tokens before 1")):
        write_archive_file(
            exact,
            codec.encode(odd, "exact"),
            identity=with_format(IDENTITY, ARCHIVE_FORMAT),
            pos_begin=0,
            tokens=page.tokens[:3],
            is_exact=True,
        )
        assert words in fails("transcode", exact, out)
    twice = [planes[0], planes[0]]
    write_archive_file(
        exact,
        codec.encode(twice, "exact"),
        identity=with_format(IDENTITY, ARCHIVE_FORMAT),
        pos_begin=0,
        tokens=page.tokens[:3],
        is_exact=True,
    )
    assert "twice" in fails("transcode", exact, out)
    assert not out.exists()


def test_archive_to_archive(files: dict[str, Path], made: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = run_json("transcode", files["exact"], out, "--profile", "balanced")
    assert out.read_bytes() == made["lcg3"] and report["notes"] == []
    result = run("transcode", files["lcg3"], out, "--profile", "fine", "--force")
    assert result.exit_code == 0 and "errors add up" in result.stderr
    with Archive(out.read_bytes()) as archive:
        assert archive.info.profile == "fine"

    out.unlink()
    assert "lossy" in fails("transcode", files["lcg3"], out, "--profile", "exact") and not out.exists()
    assert run("transcode", files["lcg3"], out, "--profile", "exact", "--force").exit_code == 0
    assert run_json("inspect", out)["is_exact"]


def test_rotation_and_kinds_are_kept(tmp_path: Path) -> None:
    planes = [
        dataclasses.replace(plane, n_rot=32, kind=Kind.AUX if plane.layer == 2 else plane.kind, layer=3 * plane.layer)
        for plane in random_planes(9, 50)
    ]
    source, out = tmp_path / "a", tmp_path / "b"
    source.write_bytes(codec.encode(planes, "exact"))
    assert run("transcode", source, out, "--profile", "lmcache").exit_code == 0
    assert out.read_bytes() == codec.encode(planes, "lmcache")


@pytest.mark.parametrize("name", ["ckg1", "lcg1", "lcg2", "lmcache"])
def test_what_cannot_be_transcoded(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    message = fails("transcode", files[name], tmp_path / "out", "--profile", "balanced")
    assert str(files[name]) in message and FileKind(name).title in message
    assert ("description of the page" in message) == (name == "ckg1")
    assert not (tmp_path / "out").exists()


def test_wrong_calls(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "--profile" in fails("transcode", files["lcg3"], out)
    assert "already" in fails("transcode", files["page"], out, "--like", files["page"])
    assert "--profile" in fails("transcode", files["lcg3"], out, "--bare")
    for options in (
        ["--profile", "fine", "--like", files["page"]],
        ["--bare", "--like", files["page"]],
        ["--profile", "nonesuch"],
        ["--threads", "0"],
    ):
        assert run("transcode", files["lcg3"], out, *options).exit_code == 2
    assert not out.exists()


def test_lossy_archive_never_becomes_a_page(files: dict[str, Path], tmp_path: Path) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    assert run("transcode", files["page"], archive, "--bare", "--profile", "fine").exit_code == 0
    message = fails("transcode", archive, out, "--like", files["page"], "--force")
    assert "lossy (profile fine)" in message and "pass for exact" in message and not out.exists()


def test_like_another_page(files: dict[str, Path], tmp_path: Path) -> None:
    out, like = tmp_path / "out", tmp_path / "like"
    archive = tmp_path / "archive"
    assert run("transcode", files["page"], archive, "--bare", "--profile", "exact").exit_code == 0
    for page, words in (
        (make_page(n_tokens=9), "9"),
        (make_page(n_layers=2), "4 components"),
        (make_page(n_channels=128), "128"),
    ):
        page.write(like)
        assert words in fails("transcode", archive, out, "--like", like)
    assert "missing" in fails("transcode", archive, out, "--like", tmp_path / "missing")
    assert "lcg3" in fails("transcode", archive, out, "--like", files["lcg3"])
    assert not out.exists()


def test_existing_output(files: dict[str, Path], made: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"precious")
    assert "--force" in fails("transcode", files["page"], out) and out.read_bytes() == b"precious"
    assert run("transcode", files["page"], out, "--force").exit_code == 0 and out.read_bytes()[:8] == ARCHIVE_MAGIC

    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    assert "exists" in fails("transcode", files["page"], dangling)
    assert "folder" in fails("transcode", files["page"], tmp_path, "--force")
    assert "no folder" in fails("transcode", files["page"], tmp_path / "nowhere" / "out")

    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(files["page"])
    os.link(files["page"], hard)
    for same in (files["page"], link, hard, tmp_path / "." / files["page"].name):
        assert "read too" in fails("transcode", files["page"], same, "--force")
    assert "read too" in fails("transcode", files["lcg3"], files["page"], "--force", "--like", files["page"])
    assert files["page"].read_bytes() == made["page"]


@pytest.mark.parametrize("target", ["archive", "page"])
@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_interrupted_write_leaves_nothing(
    target: str,
    failing: str,
    error: BaseException,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive, old = tmp_path / "archive", tmp_path / "old"
    assert run("transcode", files["page"], archive, "--profile", "exact").exit_code == 0
    old.write_bytes(b"precious")
    before = entries(tmp_path)
    options = ["--like", str(files["page"])] if target == "page" else ["--profile", "fine"]

    def fail(*arguments: Any, **more: Any) -> Any:
        raise error

    for out, force in ((tmp_path / "new", []), (old, ["--force"])):
        with monkeypatch.context() as patched:
            patched.setattr(os, failing, fail)
            result = run("transcode", archive, out, *options, *force)
        assert result.exit_code != 0
        assert entries(tmp_path) == before and old.read_bytes() == b"precious"


def test_output_that_appears_meanwhile(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_cachegen import transcode as module

    out = tmp_path / "out"
    encode_page = module.encode_page

    def slow(*arguments: Any, **more: Any) -> bytes:
        out.write_bytes(b"someone else's")
        return encode_page(*arguments, **more)

    monkeypatch.setattr(module, "encode_page", slow)
    assert "exists" in fails("transcode", files["page"], out)
    assert out.read_bytes() == b"someone else's"


def test_damaged_sources(files: dict[str, Path], made: dict[str, bytes], tmp_path: Path) -> None:
    for name in ("page", "exact"):
        damaged = bytearray(made[name])
        damaged[-40 if name != "page" else -1] ^= 1
        files[name].write_bytes(damaged)
        message = fails("transcode", files[name], tmp_path / "out", "--profile", "fine")
        assert str(files[name]) in message and not (tmp_path / "out").exists()


def test_values_that_cannot_be_encoded(tmp_path: Path) -> None:
    page = make_page()
    payload = bytearray(page.payload)
    row = 10 * page.components[0].row_bytes  # not one of the exact rows
    payload[row : row + 2] = b"\x00\x7e"  # a NaN
    first = page.components[0]
    digest = xxhash.xxh3_64_intdigest(bytes(payload[: first.n_bytes]))
    components = (dataclasses.replace(first, xxh3=digest), *page.components[1:])
    source = tmp_path / "nan.page"
    Page(identity=page.identity, pos_begin=0, tokens=page.tokens, components=components, payload=bytes(payload)).write(
        source
    )
    assert "NON_FINITE" in fails("transcode", source, tmp_path / "out")
    assert run("transcode", source, tmp_path / "out", "--profile", "exact").exit_code == 0


def test_types_the_codec_does_not_know(tmp_path: Path) -> None:
    source = tmp_path / "odd.page"
    for number in (UNKNOWN_TYPE, int(GgmlType.Q5_1)):
        random_page([(0, ComponentKind.K, number, False, 2)], [1, 2, 3]).write(source)
        assert str(source) in fails("transcode", source, tmp_path / "out", "--profile", "exact")


def test_errors_are_typed(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnknownFileError):
        kind_of(tmp_path)
    assert isinstance(run("transcode", files["ckg1"], tmp_path / "out").exception, TranscodeError)
