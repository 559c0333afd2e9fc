"""The compiled noise kernel: the draws of PyTorch's operations to the last bit, or it is not
used.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import hatch_build
from privlearn.core.mechanisms import noise
from privlearn.core.streams import NoiseStream

SOURCE = Path(noise.__file__).with_name("noise_kernel.c")
KEY = bytes(range(16))


def compiled(at: Path, change: tuple[str, str] | None = None, *flags: str) -> Path:
    """A library of the source, in which something may be changed."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    text = SOURCE.read_text()
    assert change is None or change[0] in text
    source = at / "kernel.c"
    source.write_text(text.replace(*change) if change else text)
    built = at / "kernel.so"
    subprocess.run(
        ["cc", *hatch_build.FLAGS, *flags, str(source), "-o", str(built), "-lm"], check=True
    )
    return built


def drawn(
    count: int, dtype: torch.dtype, path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> torch.Tensor:
    """What a release adds, with the library at `path` or without one."""
    own = noise.kernel(path) if path else None
    assert (own is None) == (path is None)
    with monkeypatch.context() as patch:
        patch.setattr(noise, "kernel", lambda: own)
        values = (torch.zeros(count, dtype=dtype), torch.ones(3, 5, dtype=dtype))
        noise.add_gaussian(values, 1.7, NoiseStream(KEY))
    return torch.cat([value.view(-1) for value in values])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_release_is_the_same_to_the_bit(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = compiled(tmp_path)
    for count in (1, 2, 3, 4, 5, 31, 1000, 4099, (1 << 17) + 7):
        one, other = (drawn(count, dtype, path, monkeypatch) for path in (built, None))
        assert torch.equal(one, other), count
        assert torch.unique(one[:count]).numel() > 0.99 * count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_word_may_be_any(dtype: torch.dtype, tmp_path: Path) -> None:
    kernel = noise.kernel(compiled(tmp_path))
    assert kernel is not None
    ends = np.iinfo(np.int64)
    for word in (
        ends.min,
        ends.min + 1,
        -(1 << 32),
        -1,
        0,
        1,
        1 << 31,
        1 << 32,
        (1 << 53) + 1,
        ends.max,
    ):
        words = np.full(5 * 9, word, np.int64)
        one, other = (make(words, 9, dtype) for make in (kernel, noise.by_operations))
        assert torch.equal(one, other), word
        assert one.isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        ("uniform(words[i]) * uniform(words[fours + i])", "uniform(words[i]) * uniform(words[i])"),
        ("* -2.0f", "* -1.9999f"),
        ("* 0x1p-64", "* 0x1p-65"),
        ("draws[pairs + i] =", "draws[pairs + i] = 0 *"),
        ("squares[fours + i] = size - first", "squares[fours + i] = first"),
        ("low + 2147483648.0", "low + 2147483647.0"),
        ("0x1p-63 * 3.14159265358979323846", "0x1p-63 * 3.14159265358979"),
        ("void privlearn_##name", "void another_##name"),
    ],
)
def test_one_that_draws_anything_else_is_not_used(change: tuple[str, str], tmp_path: Path) -> None:
    assert noise.kernel(compiled(tmp_path, change)) is None


def test_without_a_library_there_is_no_kernel(tmp_path: Path) -> None:
    assert noise.kernel(tmp_path / "none.so") is None
    (tmp_path / "empty.so").write_bytes(b"")
    assert noise.kernel(tmp_path / "empty.so") is None


def test_a_build_is_for_the_system_and_its_processors() -> None:
    for_linux = hatch_build.compile_command({}, windows=False)
    assert for_linux == [
        "cc",
        *hatch_build.FLAGS,
        hatch_build.SOURCE,
        "-o",
        hatch_build.BUILT,
        "-lm",
    ]
    on_macos = hatch_build.compile_command({"ARCHFLAGS": "-arch arm64"}, windows=False)
    assert on_macos == ["cc", "-arch", "arm64", *for_linux[1:]]
    on_windows = hatch_build.compile_command({}, windows=True)
    assert on_windows[0] == "gcc"
    assert "-static-libgcc" in on_windows
    chosen = hatch_build.compile_command({"CC": "'/opt/a compiler/cc' -m64"}, windows=False)
    assert chosen[:2] == ["/opt/a compiler/cc", "-m64"]
    chosen = hatch_build.compile_command({"CC": r"C:\mingw64\bin\gcc.exe -m64"}, windows=True)
    assert chosen[:2] == [r"C:\mingw64\bin\gcc.exe", "-m64"]


def test_a_build_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVLEARN_COMPILE", "1")
    monkeypatch.setenv("CC", "no-such-compiler")
    hook = hatch_build.NoiseKernelHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="leave PRIVLEARN_COMPILE unset"):
        hook.initialize("standard", {"artifacts": []})
    monkeypatch.setenv("PRIVLEARN_COMPILE", "0")
    made: dict[str, object] = {}
    hook.initialize("standard", made)
    assert not made
