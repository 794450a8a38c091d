"""Adapters of PEFT (LoRA and its kin): the proof covers the adapter, the base by its digest.

    from polo.integrations.peft import adapter

    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    view = adapter(model)                       # shares the adapter's parameters with the model
    with prover.attach(view, optimizer):        # checkpoints hold the adapter alone
        ...                                     # train `model` as ever

The checkpoints of such a proof hold the tensors that `model.save_pretrained` writes, under the
same names. A task whose `build_model` returns a view is a task about adapters; its terms name the
base. PEFT itself is not imported here before somebody brings a model of it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from polo.errors import MissingError, WeightsError
from polo.evidence.rules import Constant, Kept, Rule, Uniform
from polo.weights.checkpoint import checkpoint_of
from polo.weights.files import write_checkpoint
from polo.weights.hashing import commit

if TYPE_CHECKING:
    from collections.abc import Callable

_SAVED = ".modules_to_save."


class Adapter(nn.Module):
    """The tensors of a PEFT model's one active adapter; calls go through to the model.

    It owns no copy: its parameters are the model's own, so training the one trains the other.
    Modes and moves (`train`, `eval`, `to`) reach the whole model.

    Args:
        model: A PEFT model.

    Raises:
        WeightsError: It has several active adapters, the adapter is merged, or something that
            PEFT would not save with the adapter is trained.
    """

    model: Any

    def __init__(self, model: Any) -> None:
        super().__init__()
        _check_peft(model)
        # Past torch's bookkeeping: the base must not count among this module's tensors.
        object.__setattr__(self, "model", model)
        known = {id(parameter): name for name, parameter in model.named_parameters()}
        self._real: dict[str, str] = {}
        for name, parameter in _saved(model).items():
            self._real[name] = known[id(parameter)]
            _put(self, name, parameter)
        _check_frozen(self, model)

    def forward(self, *args: Any, **options: Any) -> Any:
        """What the whole model says."""
        return self.model(*args, **options)

    def train(self, mode: bool = True) -> Self:
        """Put the whole model into training mode, or out of it."""
        self.model.train(mode)
        return super().train(mode)

    def base_state(self) -> Mapping[str, torch.Tensor]:
        """The base's tensors by the names they have without the adapter."""
        base = self.model.get_base_model()
        wrappers = dict(_wrappers(base))
        state = base.state_dict(keep_vars=True)
        named = ((_bare(name, wrappers), value) for name, value in state.items())
        return {name: value for name, value in named if name}

    def start_rules(self) -> dict[str, Rule]:
        """How the adapter begins: as a correction of zero; saved modules as the base has them."""
        rules: dict[str, Rule] = {}
        for name, parameter in self.named_parameters():
            if name.endswith(".lora_A.weight") and parameter.dim() == 2:
                rules[name] = Uniform(parameter.shape[1] ** -0.5)
            elif name.endswith(".lora_B.weight"):
                rules[name] = Constant(0.0)
            elif _SAVED in self._real[name] or name.endswith(".lora_magnitude_vector"):
                rules[name] = Kept()
        return rules

    def _apply(self, fn: "Callable[[torch.Tensor], torch.Tensor]", recurse: bool = True) -> Self:
        self.model._apply(fn, recurse)
        live = {id(parameter) for parameter in self.model.parameters()}
        if any(id(parameter) not in live for parameter in self.parameters()):
            raise WeightsError(
                "the move gave the model new parameters, which this view does not have",
                advice="Move the model first, then make the view and the optimizer.",
            )
        return self


def adapter(model: Any) -> Adapter:
    """A module that holds exactly a PEFT model's adapter, for prover, verifier and tasks.

    Args:
        model: A PEFT model with one active adapter; everything else is frozen.
    """
    return Adapter(model)


def save_base(view: Adapter, path: str | Path) -> bytes:
    """Write the base that a view stands on as one safetensors file, for `polo identify --base`.

    Args:
        view: What `adapter` returned.
        path: The file; an older one is replaced.

    Returns:
        The base's root.
    """
    checkpoint = checkpoint_of(view.base_state())
    with Path(path).open("wb") as file:
        write_checkpoint(checkpoint, file.write)
    return commit(checkpoint).root


def _check_peft(model: Any) -> None:
    try:
        from peft import PeftModel
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError as error:
        raise MissingError("adapters need peft", advice="pip install 'polo-proof[peft]'") from error
    if not isinstance(model, PeftModel):
        raise WeightsError(
            f"a {type(model).__name__} is no PEFT model", advice="Use what get_peft_model returns."
        )
    active = model.active_adapters
    if len(active) != 1:
        raise WeightsError(
            f"{len(active)} adapters are active; a proof covers one",
            advice="model.set_adapter(NAME)",
        )
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and module.merged:
            raise WeightsError(
                "the adapter is merged into the base", place=name, advice="model.unmerge_adapter()"
            )


def _saved(model: Any) -> dict[str, nn.Parameter]:
    """What PEFT saves of the active adapter, by PEFT's names, as the model's own parameters."""
    from peft.utils import get_peft_model_state_dict

    name = model.active_adapters[0]
    state = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    own = {(p.data_ptr(), p.shape): p for p in model.parameters() if p.numel()}
    found = {}
    for key, value in state.items():
        parameter = own.get((value.data_ptr(), value.shape))
        if parameter is None:
            raise WeightsError(
                "this part of the adapter is no parameter of the model",
                place=key,
                advice="Use LoRA, or another method whose weights PEFT saves as they are.",
            )
        found[key] = parameter
    if not found:
        raise WeightsError("the adapter has no tensors")
    return found


def _put(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under a dotted name, with empty modules on the way."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(last, parameter)


def _check_frozen(view: Adapter, model: Any) -> None:
    own = {id(parameter) for parameter in view.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in own:
            raise WeightsError(
                "is trained, and is no part of the adapter that PEFT saves",
                place=name,
                advice="Freeze it, or name its module in modules_to_save.",
            )


def _wrappers(base: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules that PEFT has put around others: their path, and what they call the inner one."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    for path, module in base.named_modules():
        if isinstance(module, BaseTunerLayer):
            yield path, "base_layer"
        elif isinstance(module, AuxiliaryTrainingWrapper):
            yield path, "original_module"


def _bare(name: str, wrappers: Mapping[str, str]) -> str:
    """A tensor's name without PEFT's wrappers; empty if it belongs to an adapter.

    >>> _bare("a.q.base_layer.weight", {"a.q": "base_layer"})
    'a.q.weight'
    >>> _bare("a.q.lora_A.default.weight", {"a.q": "base_layer"})
    ''
    """
    path, kept = "", []
    for part in name.split("."):
        inner = wrappers.get(path)
        if inner not in (None, part):
            return ""
        if inner is None:
            kept.append(part)
        path = f"{path}.{part}" if path else part
    return ".".join(kept)
