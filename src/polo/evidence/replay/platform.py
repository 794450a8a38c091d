"""What the last bits of a training step depend on: versions, device, threads, flags.

Two runs whose descriptions are equal are expected to agree to the bit. Part of a description are
settings that another machine can take over for a while (`adopted`); the rest it has or has not.
A record holds a description as text, and what comes from a prover is read with suspicion.

Specification: docs/protocol.md, section 17.3.
"""

import functools
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.errors import FormatError, LimitError
from polo.protocol import canonical

if TYPE_CHECKING:
    import torch

SIZE = 512
"""Bytes that a record has for a description."""

MAX_THREADS = 64
"""Most threads that are taken over from a description."""

KERNELS = {
    "cpu": (
        "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE",
        "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
        "OPENBLAS_CORETYPE",
    ),
    "cuda": ("NVIDIA_TF32_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUDNN_V8_API_DISABLED"),
}  # fmt: skip
"""Variables of the environment that choose kernels behind torch's back, by kind of device."""

USUAL = {
    "accumulation": "off",
    "attention_cudnn": "on",
    "attention_efficient": "on",
    "attention_flash": "on",
    "attention_reduced": "off",
    "denormals": "kept",
    "mkldnn_deterministic": "off",
}
"""What is said only where it is otherwise."""

_NOT_FOR_VERIFIERS = {
    "accumulation": "on",
    "attention_cudnn": "off",
    "attention_efficient": "off",
    "attention_flash": "off",
    "attention_reduced": "on",
    "reduced_bf16": "on",
    "reduced_fp16": "on",
}
"""Words that make sums less exact, or take many times the memory: attention by other kernels."""

_DENORMAL = 1e-39
_LONGEST = 48
_WORDS: dict[str, Any] = {"on": True, "off": False}
_PRECISIONS = {"none": 2, "ieee": 2, "tf32": 1, "bf16": 0}
"""How products are made, and how exact each way is; steps of less exact ones cost less."""


def describe(device: "torch.device | str") -> dict[str, str]:
    """This machine, as training on a device finds it now.

    Threads and instruction sets of the processor count for training on the processor alone.
    """
    import torch

    device = torch.device(device)
    found = {
        "device": device.type,
        "machine": platform.machine(),
        "torch": str(torch.__version__),
        "deterministic": _spelled(torch.are_deterministic_algorithms_enabled()),
    }
    found |= _cuda(device) if device.type == "cuda" else _cpu()
    found |= _chosen(KERNELS["cuda" if device.type == "cuda" else "cpu"])
    for key, (owner, attribute) in _settings(device.type).items():
        found[key] = _spelled(getattr(owner, attribute))
    return dict(_worded(tuple(found.items())))


@functools.lru_cache(64)
def _worded(found: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What was found, as descriptions say it; it is asked often, and nearly always the same."""
    told = {key: value for key, value in found if USUAL.get(key) != value}
    # Printable ASCII: whatever a driver calls its device, the text stays short.
    plain = {key: value.encode("ascii", "replace").decode() for key, value in told.items()}
    return _fitting({key: value[:_LONGEST] for key, value in sorted(plain.items())})


def _fitting(description: dict[str, str]) -> dict[str, str]:
    """The description; one with a hash for all that is unusual if a record could not hold it."""
    if len(canonical.encode(description)) <= SIZE:
        return description
    unusual = {key: description[key] for key in description.keys() & {*USUAL, "kernels"}}
    digest = hashlib.sha256(canonical.encode(unusual)).hexdigest()[:_LONGEST]
    usual = {key: value for key, value in description.items() if key not in unusual}
    return dict(sorted({**usual, "unusual": digest}.items()))


def text_of(description: Mapping[str, str]) -> str:
    """A description as records hold it.

    Raises:
        LimitError: It is too long.
    """
    text = canonical.encode(dict(description)).decode()
    padded(text)
    return text


def parse(text: str, place: str) -> dict[str, str]:
    """The description in a text of unknown origin."""
    found = canonical.parse(text.encode(), place=place, limit=SIZE)
    if not isinstance(found, dict) or not all(type(value) is str for value in found.values()):
        raise FormatError("the platform is no object of strings", place=place)
    return found


def padded(text: str) -> bytes:
    """A description's text as the bytes of a record."""
    data = text.encode()
    if len(data) > SIZE:
        raise LimitError(f"a description of {len(data)} bytes; at most {SIZE}", place="platform")
    return data.ljust(SIZE)


def unpadded(data: bytes, place: str) -> str:
    """The text in the bytes of a record, refused unless it is a description."""
    try:
        text = data.rstrip(b" ").decode()
    except UnicodeDecodeError as error:
        raise FormatError("the platform is no text", place=place) from error
    parse(text, place)
    return text


def same(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """What differs between two descriptions; nothing if they are equal.

    >>> same({"torch": "2.11.0", "device": "cpu"}, {"torch": "2.13.0", "device": "cpu"})
    ['torch: 2.11.0 and 2.13.0']
    """
    return [
        f"{key}: {_said(a, key)} and {_said(b, key)}"
        for key in sorted({*a, *b})
        if a.get(key) != b.get(key)
    ]


def _said(description: Mapping[str, str], key: str) -> str:
    return description.get(key) or USUAL.get(key, "none")


def device_for(text: str, device: str | None = None) -> str:
    """The device to run something again on: the one given, else the described kind, if it is here.

    Args:
        text: The description of what is to be run again.
        device: A device that was asked for.
    """
    import torch

    if device is None:
        wanted = parse(text, "platform").get("device")
        return "cuda" if wanted == "cuda" and torch.cuda.is_available() else "cpu"
    return device


@contextmanager
def adopted(text: str, *, own: bool = False) -> Iterator[None]:
    """Take over the settings of a description, as far as they are settings, for a while.

    Values that no honest description has are left alone, and so are those that would make sums or
    products less exact than they are here, or attention need more memory: how exact steps are, and
    what they may take, is the verifier's choice. The descriptions then differ.

    Args:
        text: The description.
        own: Take those over, too: for a prover, whose own description it is.
    """
    import torch

    wanted = parse(text, "platform")
    with ExitStack() as stack:
        threads = _threads(wanted.get("threads", ""))
        if threads and threads != torch.get_num_threads():
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        strict = _WORDS.get(wanted.get("deterministic", ""))
        if strict is not None and strict != torch.are_deterministic_algorithms_enabled():
            stack.callback(_be_deterministic, *_determinism())
            # The kernels are the same, and what has no such kernel need not fail here.
            _be_deterministic(strict, True)
        for key, (owner, attribute) in _settings(wanted.get("device", "")).items():
            word = wanted.get(key, USUAL.get(key, ""))
            # What a hash stands for cannot be taken over, and is not reset either.
            hidden = "unusual" in wanted and key in USUAL
            if not hidden and (own or not _refused(key, getattr(owner, attribute), word)):
                _adopt(stack, owner, attribute, word)
        if own and wanted.get("denormals") == "flushed" != _denormals():
            stack.callback(torch.set_flush_denormal, False)
            torch.set_flush_denormal(True)
        yield


def _threads(word: str) -> int:
    """A number of threads that can be taken over; else 0."""
    sane = word.isascii() and word.isdigit() and len(word) <= len(str(MAX_THREADS))
    return int(word) if sane and int(word) <= MAX_THREADS else 0


def _determinism() -> tuple[bool, bool]:
    import torch

    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _be_deterministic(strict: bool, warn_only: bool) -> None:
    import torch

    torch.use_deterministic_algorithms(strict, warn_only=warn_only)


def _refused(key: str, now: bool | str, word: str) -> bool:
    """Whether a switch would make sums or products less exact than now, or take more memory."""
    if isinstance(now, bool):
        return _NOT_FOR_VERIFIERS.get(key) == word
    return _PRECISIONS.get(word, 0) < _PRECISIONS.get(now, 0)


def _adopt(stack: ExitStack, owner: Any, attribute: str, word: str) -> None:
    """Set one switch for a while, if the word is one of its values."""
    now = getattr(owner, attribute)
    if isinstance(now, bool) and word in _WORDS:
        value = _WORDS[word]
    elif isinstance(now, str) and word in _PRECISIONS:
        value = word
    else:
        return
    if value != now:
        stack.callback(setattr, owner, attribute, now)
        setattr(owner, attribute, value)


def _settings(device: str) -> dict[str, tuple[Any, str]]:
    """Switches of torch that change results on a kind of device: where each is, and its name."""
    import torch

    backends: Any = torch.backends
    attention = {f"attention_{name}": (_ATTENTION, name) for name in _Attention.NAMES}
    if device == "cuda":
        matmul, cudnn = backends.cuda.matmul, backends.cudnn
        return {
            **attention,
            "accumulation": (matmul, "allow_fp16_accumulation"),
            "benchmark": (cudnn, "benchmark"),
            "cudnn_deterministic": (cudnn, "deterministic"),
            "matmul": (matmul, "fp32_precision"),
            "conv": (cudnn.conv, "fp32_precision"),
            "reduced_bf16": (matmul, "allow_bf16_reduced_precision_reduction"),
            "reduced_fp16": (matmul, "allow_fp16_reduced_precision_reduction"),
        }
    mkldnn = backends.mkldnn
    return {
        **attention,
        "mkldnn_deterministic": (mkldnn, "deterministic"),
        "mkldnn": (mkldnn, "enabled"),
        "matmul": (mkldnn.matmul, "fp32_precision"),
        "conv": (mkldnn.conv, "fp32_precision"),
    }


class _Attention:
    """Which kernels attention may take, as attributes; torch has functions for it.

    They hold for processors, too. What takes over where no other kernel may is not among them: a
    step that needs it fails without, so that nobody's word may turn it off.
    """

    NAMES = ("cudnn", "efficient", "flash", "reduced")

    def __getattr__(self, name: str) -> bool:
        if name not in self.NAMES:
            raise AttributeError(name)
        return bool(self._of(name)[0]())

    def __setattr__(self, name: str, value: bool) -> None:
        self._of(name)[1](value)

    @staticmethod
    @functools.cache
    def _of(name: str) -> tuple[Any, Any]:
        import torch

        cuda: Any = torch.backends.cuda
        return {
            "cudnn": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
            "efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
            "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
            "reduced": (
                cuda.fp16_bf16_reduction_math_sdp_allowed,
                cuda.allow_fp16_bf16_reduction_math_sdp,
            ),
        }[name]


_ATTENTION = _Attention()


def _cuda(device: "torch.device") -> dict[str, str]:
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    return {
        **_hardware(index),
        "cudnn": str(torch.backends.cudnn.version()) if torch.backends.cudnn.enabled else "off",
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }


@functools.cache
def _hardware(index: int) -> dict[str, str]:
    """What stays as it is while a process runs."""
    import torch

    facts = torch.cuda.get_device_properties(index)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "units": str(facts.multi_processor_count),
        "cuda": str(torch.version.cuda or torch.version.hip),
    }


def _cpu() -> dict[str, str]:
    import torch

    return {
        "name": _processor(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "mkl": _spelled(torch.backends.mkl.is_available()),
        "denormals": _denormals(),
    }


def _chosen(names: Iterable[str]) -> dict[str, str]:
    """What the environment says about kernels; nothing if it says nothing."""
    said = " ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
    if len(said) > _LONGEST:
        said = hashlib.sha256(said.encode()).hexdigest()[:_LONGEST]
    return {"kernels": said} if said else {}


def _denormals() -> str:
    import torch

    tiny = torch.tensor(_DENORMAL, dtype=torch.float32, device="cpu")
    return "kept" if tiny.mul(1.0).item() else "flushed"


@functools.cache
def _processor() -> str:
    """Name, family and model: cloud machines often give a bare name."""
    facts: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} ({facts.get('cpu family')}/{facts.get('model')})"


def _spelled(value: bool | str) -> str:
    return value if isinstance(value, str) else "on" if value else "off"
