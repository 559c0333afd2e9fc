"""The benchmarks run, their answers agree, and their rows are as promised."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.clipping.architectures import like
from tests.conftest import ROOT

COLUMNS = {"case", "variant", "ratio", "low", "high", "seconds", "peak_mib"}


@pytest.fixture
def accounting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("accounting")


@pytest.fixture
def clipping(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("clipping")


@pytest.mark.filterwarnings("ignore")
def test_every_case_beside_the_peers(accounting: ModuleType) -> None:
    for peer in ("opacus", "prv_accountant"):
        pytest.importorskip(
            peer, reason=f"the peer {peer} is not installed: pip install 'privlearn[test]'"
        )
    cases = accounting.cases(accounting.SMOKE)
    rows = [row for case in cases for row in accounting.common.measure(case)]
    assert len(rows) == sum(len(case.variants) for case in cases)
    require_figures(rows)


def require_figures(rows: list[Any]) -> None:
    for row in rows:
        assert set(row.plain()) == COLUMNS
        assert row.seconds > 0
        assert 0 < row.low <= row.ratio <= row.high


def test_an_answer_apart_from_the_baselines_fails(accounting: ModuleType) -> None:
    common = accounting.common
    baseline, error = (
        common.Variant("a", lambda: 1.0),
        common.Variant("b", lambda: 1.1, within=0.02, slack=0.1),
    )
    apart, absent = (
        common.Variant("c", lambda: 1.1, within=0.02),
        common.Variant("d", lambda: 1.0, ("no_such_peer.part",)),
    )
    rows = common.measure(common.Case("case", "answer", (baseline, error, absent), 2))
    assert [row.variant for row in rows] == ["a", "b"]
    with pytest.raises(RuntimeError, match="apart"):
        common.measure(common.Case("case", "answer", (baseline, apart), 1))


def test_what_a_limit_refuses(accounting: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    common = accounting.common
    baseline, near = (
        common.Variant("a", lambda: 1.0),
        common.Variant("b", lambda: lambda: 0.1, limit=0.2),
    )
    far = common.Variant("c", lambda: lambda: 0.3, limit=0.2)

    def unable() -> float:
        raise NotImplementedError("not this layer")

    peers = replace(far, name="d", peer=True), common.Variant("e", unable, prepared=True, peer=True)
    rows = common.measure(common.Case("case", "distance", (baseline, near, *peers), 1))
    assert [(row.variant, row.answer) for row in rows] == [("a", 1.0), ("b", 0.1)]
    said = capsys.readouterr().err
    assert "d left out, its distance is 0.3" in said
    assert "e left out, NotImplementedError: not this layer" in said
    with pytest.raises(RuntimeError, match="distance"):
        common.measure(common.Case("case", "distance", (baseline, far), 1))
    with pytest.raises(NotImplementedError):
        common.measure(
            common.Case("case", "distance", (baseline, replace(peers[1], peer=False)), 1)
        )


@pytest.mark.filterwarnings("ignore")
def test_every_step_finds_the_same_clipped_sum(clipping: ModuleType) -> None:
    pytest.importorskip(
        "opacus", reason="the peer opacus is not installed: pip install 'privlearn[test]'"
    )
    cases = clipping.cases(clipping.SMOKE)
    rows = [row for case in cases for row in clipping.common.measure(case)]
    fast = clipping.steps.FAST_KERNELS
    left_out = 0 if fast else len(clipping.SMOKE.networks)
    assert len(rows) == sum(len(case.variants) for case in cases) - left_out
    require_figures(rows)
    assert {network.name for network in clipping.SMOKE.networks} < {
        row.case.partition(":")[0] for row in rows
    }
    for row in rows:
        if row.case.partition(":")[0] in {network.name for network in clipping.networks.FULL}:
            clips = row.variant.startswith(("privlearn", "Opacus", "torch.func"))
            assert (row.answer < 1e-3) == clips, row


def test_other_libraries_can_be_left_out(clipping: ModuleType) -> None:
    for case in map(clipping.without_peers, clipping.cases(clipping.SMOKE)):
        names = [variant.name for variant in case.variants]
        assert any("plain" in name or "its steps" in name for name in names)
        assert not any("Opacus" in name or "torch.func" in name for name in names)


def test_some_examples_are_clipped_and_some_are_not(clipping: ModuleType) -> None:
    for network in clipping.SMOKE.networks:
        _, norms = clipping.steps.truth(network)
        assert norms.min() < network.clip < norms.max(), network.name


def test_another_clipped_sum_is_far_from_the_truth(clipping: ModuleType) -> None:
    network = clipping.SMOKE.networks[0]
    total, _ = clipping.steps.truth(network)
    assert clipping.steps.distance(network, total) == 0
    assert clipping.steps.distance(
        network, {name: 1.1 * part for name, part in total.items()}
    ) == pytest.approx(0.1)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("noise")


def test_noise_beside_other_generators(noise: ModuleType) -> None:
    for case in noise.cases(100_000, 1):
        rows = noise.common.measure(case)
        assert len(rows) == len(noise.WAYS)
        require_figures(rows)


def test_box_and_muller(noise: ModuleType) -> None:
    draws = noise.by_system(torch.zeros(100_000))
    assert draws.isfinite().all()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert float((draws**power).mean()) == pytest.approx(moment, abs=0.1)


def test_a_sweep_and_its_figures(
    clipping: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = clipping.sweep(clipping.SMOKE, rounds=1, memory=1e-6)
    rows = [
        row
        for by_size in swept.values()
        for case in by_size.values()
        for row in clipping.common.measure(case)
    ]
    assert "vmap of grad left out, MemoryError: the gradients" in capsys.readouterr().err
    found = clipping.of_sweep(swept, [replace(row, peak_mib=2.5) for row in rows])
    assert {axis: {row["size"] for row in rows} for axis, rows in found.items()} == {
        axis: set(by_size) for axis, by_size in swept.items()
    }
    (tmp_path / "sweep.json").write_text(json.dumps(found))
    importlib.import_module("plots").main([str(tmp_path / "sweep.json"), str(tmp_path)])
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "clipping-batch.png",
        "clipping-parameters.png",
    }


@pytest.fixture
def dpmac(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("dpmac")


def test_w_steps_find_the_same_sums(dpmac: ModuleType) -> None:
    cases = dpmac.cases(dpmac.SMOKE)
    rows = [row for case in cases for row in dpmac.common.measure(case)]
    assert len(rows) == sum(len(case.variants) for case in cases)
    require_figures(rows)
    for case in cases[:-1]:
        clipped, held, bare = (row.answer for row in rows if row.case == case.name)
        assert clipped == pytest.approx(held, rel=1e-4)
        assert bare > clipped * 1.1  # there is something to clip


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("features")


def test_one_pass_finds_the_means(features: ModuleType) -> None:
    case = features.one_pass(features.SMOKE)
    rows = features.common.measure(case)
    assert len(rows) == len(case.variants)
    require_figures(rows)


@pytest.fixture
def architectures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for package in ("opacus", "transformers"):
        pytest.importorskip(
            package, reason=f"{package} is not installed: pip install 'privlearn[test]'"
        )
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("architectures")


@pytest.mark.filterwarnings("ignore")
def test_the_table_of_architectures(architectures: ModuleType, tmp_path: Path) -> None:
    """A model that all compute, one that a change makes right, one that is refused, and one that is
    silently wrong.
    """
    rows = [
        architectures.judged(like(name))
        for name in ("Llama", "BERT", "ResNet", "CLIP, contrastive", "ConvNeXT")
    ]
    changed = "right, changed"
    assert [row.outcomes for row in rows] == [
        ("right", "right", "right"),
        ("right", changed, changed),
        (changed, "refused", "refused"),
        ("refused", "refused", "refused"),
        ("right", "wrong", "wrong"),
    ]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    results = architectures.as_json(rows)
    architectures.write(page, "table", architectures.table(results))
    architectures.write_json(page, results)
    assert json.loads((tmp_path / "architectures.json").read_text()) == results
    text = page.read_text()
    assert text.startswith("before\n<!-- table -->\n\n| |")
    assert text.endswith("<!-- end of table -->\nafter\n")
    assert "old" not in text
    assert "| right | transformers | Llama; BERT; ConvNeXT |" in text
    assert "| wrong, without an error | 0 | 1 | 1 |" in text
    assert results["architectures"][0] == ["Llama", "transformers", "right", "right", "right"]
    assert results["messages"]["batch norm"] == [1, 1, 1]
    assert results["wrong"][0][:2] == ["ConvNeXT", "Opacus, hooks"]
    assert results["wrong"][0][2].startswith("convnext.embeddings")
    with pytest.raises(ValueError, match="steps"):
        architectures.write(page, "steps", "")


@pytest.mark.filterwarnings("ignore")
def test_steps_of_architectures(architectures: ModuleType) -> None:
    steps = importlib.import_module("architecture_steps")
    rows = architectures.common.measure(steps.cases(quick=True, rounds=1)[4])
    assert [row.variant for row in rows] == [
        steps.PLAIN,
        steps.OURS,
        steps.NOISY,
        steps.HOOKS,
        steps.GHOST,
    ]
    require_figures(rows)
    lines = steps.table(
        [replace(row, peak_mib=2.0) for row in rows if row.variant != steps.HOOKS]
    ).splitlines()
    assert lines[2].startswith("| ViT, time | ")
    assert lines[3] == "| ViT, memory | 2 MiB | 1.00 | 1.00 | not right | 1.00 |"


def test_the_page_on_size_has_the_table_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it says what the code does: sums travel in single precision, and a process makes its part
    of noise.
    """
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    scale = importlib.import_module("scale")
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert "\n".join(scale.table(scale.Rates(), scale.ON_THE_PAGE)) in page
    one, many = (scale.step(10**6, ranks, scale.Rates()) for ranks in (1, 8))
    assert (one["traffic"], many["traffic"]) == (0, 7e6)
    assert (one["seconds"]["noise"], many["seconds"]["noise"]) == (0.01, 0.00125)


def test_training_from_a_packed_table_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    table = importlib.import_module("big_table")
    table.write(tmp_path / "table.parquet", 3000, 5)
    table.pack(tmp_path / "table.parquet", tmp_path / "packed", 5)
    disk, memory = (table.train(tmp_path / "packed", 3, in_memory=own) for own in (False, True))
    assert disk["weights"] == memory["weights"]
    assert min(disk["seconds_a_step"], memory["seconds_a_step"]) > 0


def test_audits_of_what_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    audits = importlib.import_module("audits")
    size = replace(audits.QUICK, trials=20)
    answers = [answer for part in ("pate", "steps") for answer in audits.PARTS[part](size)]
    assert len(answers) == 1 + 3
    assert all(
        answer["ok"] and answer["epsilon_lower"] <= answer["epsilon_claimed"] for answer in answers
    )


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("recording")


def test_recorded_runs_take_the_same_steps(recording: ModuleType) -> None:
    for case in recording.cases(recording.SMOKE):
        rows = recording.common.measure(case)
        assert len(rows) == len(case.variants)
        require_figures(rows)


def test_the_ceiling_of_features(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every head is judged on the last fifth; answers are kept, and a run that was interrupted goes
    on with them.
    """
    pytest.importorskip(
        "kymatio", reason="kymatio is not installed: pip install 'privlearn[scattering]'"
    )
    from privlearn.transforms import made_up_images

    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    ceiling = importlib.import_module("ceiling")
    monkeypatch.setattr(made_up_images, "_IMAGES", 60)
    monkeypatch.setattr(ceiling, "AT_ONCE", 20)
    y = torch.arange(60) % 10
    colour = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    for row, label in enumerate(y.tolist()):
        colour[row, label % 3, 3 * label : 3 * label + 3] = 255
    whole = ceiling.answers(colour.numpy(), tmp_path, 20).copy()
    (tmp_path / "answers-60.done").write_text("40")
    assert (ceiling.answers(colour.numpy(), tmp_path, 20) == whole).all()
    own = ceiling.features(whole, "20", tmp_path, 48)
    expected = ceiling.ScatterRandom(kept=20).module(ceiling.SHAPE, tmp_path)(colour.float() / 255)
    assert torch.allclose(own, expected, atol=0.02)
    table = dict(ceiling.measured(whole, y, "20", tmp_path, quick=True))
    assert table["linear head, no privacy"] == 1.0
    assert {f"DP-SGD, epsilon {epsilon:g}" for epsilon in ceiling.EPSILONS} <= set(table)
    assert table["DP-SGD's descent at epsilon 8, without its noise"] > table["DP-SGD, epsilon 1"]
    assert len(table) == 1 + 6 + 3 + 1 + 2
    assert set(dict(ceiling.measured(whole, y, "all", tmp_path, quick=True))) < set(table)


@pytest.mark.filterwarnings("ignore")
def test_forty_networks_are_measured_beside_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("transformers", "timm", "torchvision"):
        pytest.importorskip(
            package, reason=f"{package} is not installed: pip install 'privlearn[test]'"
        )
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    forty = importlib.import_module("forty")
    every = {network.name: network for network in forty.every()}
    assert len(every) == 40
    monkeypatch.setattr(forty, "WIDTH", 16)
    rows = [forty.measured(every[name], 2) for name in ("GRU 128, length 64, batch 64", "FNet")]
    for row in rows:
        assert row.way == "layers"
        assert not row.reason
        assert len(row.ratios) == 2
    refused = replace(
        every["FNet"], loss=lambda model, batch: forty.of_classes(model, batch).mean()
    )
    assert forty.measured(refused, 1).way == "refused"
    lines = forty.table(
        [forty.figures(row) for row in (*rows, forty.measured(refused, 1))]
    ).splitlines()
    assert len(lines) == 5
    assert "NotPerExample" in lines[-1]


def test_the_page_has_ten_rows_of_the_forty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All are in the file beside it, and writing both again changes nothing."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    forty = importlib.import_module("forty")
    names = ("forty-networks.json", "performance.md")
    texts = {name: (ROOT / "docs" / name).read_text("utf-8") for name in names}
    rows = json.loads(texts["forty-networks.json"])
    assert {row["network"] for row in rows} == {network.name for network in forty.every()}
    (tmp_path / "performance.md").write_text(texts["performance.md"], "utf-8")
    forty.write(rows, tmp_path)
    assert {name: (tmp_path / name).read_text("utf-8") for name in names} == texts
    assert all(f"| {name} |" in texts["performance.md"] for name in forty.ON_THE_PAGE)
    assert len(forty.ON_THE_PAGE) == 10


def test_exponents_of_a_sweep_are_those_of_the_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    rows = [
        {"variant": name, "size": size, "seconds": 3 * size**power}
        for name, power in (("a", 1.0), ("b", 0.5))
        for size in (10, 100, 1000)
    ]
    fitted = importlib.import_module("plots").exponents(
        [*rows, {"variant": "c", "size": 1, "seconds": 1.0}]
    )
    assert fitted == {"a": pytest.approx(1.0), "b": pytest.approx(0.5)}


def test_live_memory_is_what_tensors_hold_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    live_memory = importlib.import_module("live_memory")
    with live_memory.LiveMemory() as live:
        one = torch.ones(live_memory.MIB // 4)
        view, other = one[1:], one + 1
        del other
        both = (one * 2, view)
    assert live.peak == 2 * live_memory.MIB
    assert sum(held.size for held in live.at_peak) == live.peak
    assert len(both) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_step_holds_more_than_its_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain step holds at least the output of its largest layer, for all examples."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    live_memory = importlib.import_module("live_memory")
    networks, steps = live_memory.networks, live_memory.steps
    network = networks.SMOKE[0]
    widest = max(each.numel() for each in network.built().state_dict().values() if each.dim() == 1)
    for make in (steps.plain, steps.by_privlearn("none", fast_kernels=None)):
        assert live_memory.measure(network, make).peak >= 4 * network.batch * widest


@pytest.mark.filterwarnings("ignore")
def test_a_network_on_an_accelerator_is_measured_on_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All four ways, or the reason; the memory of a device is not claimed where there is none."""
    pytest.importorskip("opacus", reason="Opacus is not here: pip install 'privlearn[test]'")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    accelerator = importlib.import_module("accelerator")
    networks = {network.name: network for network in accelerator.list_networks(small=True)}
    assert len(networks) == 9
    row = accelerator.measure(networks["U-Net"], "cpu", 1, largest=False)
    assert row.milliseconds.keys() == accelerator.WAYS.keys()
    assert not row.failed
    assert not row.memory
    failing = replace(networks["U-Net"], make=lambda: accelerator.UNet(7))
    assert "ValueError" in accelerator.measure(failing, "cpu", 1, largest=False).failed["network"]


def test_the_script_for_a_gpu_runs_on_a_processor(tmp_path: Path) -> None:
    """Each part ends without an error; those whose data or packages are missing are named."""
    environment = {
        **os.environ,
        "DEVICE": "cpu",
        "SMALL": "1",
        "OUT": str(tmp_path),
        "PYTHON": sys.executable,
        "WHEELS": "none",
    }
    done = subprocess.run(
        ["bash", "bench/gpu.sh"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    codes = dict(re.findall(r"^== ([\w-]+): exit (\d+)", done.stdout, re.MULTILINE))
    assert codes.keys() == {"versions", "first-run", "tests", "noise", "networks", "cifar10"}
    missing = (tmp_path / "cifar10.txt").read_text("utf-8")
    allowed = {"cifar10"} if "there is no file" in missing else set()
    assert {name for name, code in codes.items() if code != "0"} <= allowed, done.stdout
