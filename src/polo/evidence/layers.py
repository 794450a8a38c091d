"""How the layers of torch begin, and which rule holds for each tensor of a model. torch.

The table follows what torch's own layers do when they are built.

Specification: docs/protocol.md, section 14.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from polo.errors import TaskError, WeightsError
from polo.evidence.rules import Constant, HasStartRules, Normal, Rule, Uniform, check_rule
from polo.protocol.layout import Layout
from polo.weights.checkpoint import canonical_names, unwrapped

Rules = Mapping[str, Rule]


def rules_of(model: nn.Module, layout: Layout) -> tuple[Rule, ...]:
    """The rule of every tensor, in the order of the layout.

    Args:
        model: The model.
        layout: Its layout.

    Raises:
        WeightsError: No rule is known for a tensor; the error names it and says what to do.
    """
    own = {short: raw for raw, short in canonical_names(list(model.state_dict())).items()}
    modules = dict(model.named_modules(remove_duplicate=False))
    given = _given(modules, list(own.values()))
    usual = {path: rules for path, module in modules.items() if (rules := _usual(module))}
    names: dict[str, list[str]] = {tensor.name: [tensor.name] for tensor in layout.tensors}
    for tie in layout.ties:
        names[tie.name].append(tie.alias)
    found = []
    for tensor in layout.tensors:
        paths = [own[name] for name in names[tensor.name]]
        rule = next((rule for rules in (given, usual) for rule in _named(rules, paths)), None)
        if rule is None:
            raise _unknown(tensor.name, modules.get(own[tensor.name].rpartition(".")[0]))
        check_rule(rule, tensor)
        found.append(rule)
    return tuple(found)


def _given(modules: Mapping[str, nn.Module], tensors: list[str]) -> dict[str, Rules]:
    """What modules say themselves, by the module's path."""
    found = {path: m.start_rules() for path, m in modules.items() if isinstance(m, HasStartRules)}
    for path, rules in found.items():
        known = {unwrapped(name) for name in _below(path, tensors)}
        for name in rules:
            if name not in known:
                kind = type(modules[path]).__name__
                raise TaskError(f"start_rules of {kind} name {name!r}, which is no tensor of it")
    return found


def _below(path: str, tensors: list[str]) -> Iterator[str]:
    """Names of the tensors of a module, relative to it."""
    start = f"{path}." if path else ""
    return (name[len(start) :] for name in tensors if name.startswith(start))


def _named(rules: Mapping[str, Rules], names: list[str]) -> Iterator[Rule]:
    """Rules for a tensor of these names; those of outer modules first."""
    for name in names:
        parts = name.split(".")
        for depth in range(len(parts)):
            said = rules.get(".".join(parts[:depth]), {})
            rule = said.get(unwrapped(".".join(parts[depth:])))
            if rule is not None:
                yield rule


def _unknown(name: str, module: nn.Module | None) -> WeightsError:
    kind = type(module).__name__ if module is not None else "the model"
    leaf = name.rpartition(".")[2]
    return WeightsError(
        f"no rule says how this tensor of {kind} begins, so the start cannot be drawn",
        place=name,
        advice=f"Give {kind} a method start_rules that returns {{{leaf!r}: Normal(0.02)}} or "
        "another rule of polo.evidence.rules.",
    )


def _usual(module: nn.Module) -> Rules | None:
    return next((rules(module) for kinds, rules in LAYERS if isinstance(module, kinds)), None)


def _inverse_root(fan: int) -> Rule:
    return Uniform(1 / math.sqrt(fan)) if fan else Constant(0.0)


def _fans(weight: Tensor) -> tuple[int, int]:
    """Inputs and outputs of a weight as torch counts them, transposed convolutions included."""
    inner = math.prod(weight.shape[2:])
    return weight.shape[1] * inner, weight.shape[0] * inner


def _xavier(weight: Tensor) -> Rule:
    fans = sum(_fans(weight))
    return Uniform(math.sqrt(6 / fans)) if fans else Constant(0.0)


def _by_inputs(layer: Any) -> Rules:
    rule = _inverse_root(_fans(layer.weight)[0])
    return {"weight": rule, "bias": rule}


def _bilinear(layer: Any) -> Rules:
    rule = _inverse_root(layer.weight.shape[1])
    return {"weight": rule, "bias": rule}


def _embedding(layer: Any) -> Rules:
    return {"weight": Normal(1.0, layer.padding_idx)}


def _norm(layer: Any) -> Rules:
    del layer
    ones, zeros = Constant(1.0), Constant(0.0)
    return {
        "weight": ones, "bias": zeros,
        "running_mean": zeros, "running_var": ones, "num_batches_tracked": zeros,
    }  # fmt: skip


def _recurrent(layer: Any) -> Rules:
    rule = _inverse_root(layer.hidden_size)
    return {name: rule for name, _ in layer.named_parameters()}


def _attention(layer: Any) -> Rules:
    projections = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    weights = {name: getattr(layer, name) for name in projections}
    found = {name: _xavier(weight) for name, weight in weights.items() if weight is not None}
    side = Normal(math.sqrt(1 / layer.embed_dim))
    zeros = Constant(0.0)
    return {**found, "in_proj_bias": zeros, "out_proj.bias": zeros, "bias_k": side, "bias_v": side}


def _slope(layer: Any) -> Rules:
    return {"weight": Constant(layer.init)}


def _transformer(layer: Any) -> Rules:
    matrices = ((name, p) for name, p in layer.named_parameters() if p.dim() > 1)
    return {unwrapped(name): _xavier(p) for name, p in matrices}


LAYERS: tuple[tuple[tuple[type[nn.Module], ...], Callable[[Any], Rules]], ...] = (
    ((nn.Linear, _ConvNd), _by_inputs),
    ((nn.Bilinear,), _bilinear),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    ((_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), _norm),
    ((nn.RNNBase, nn.RNNCellBase), _recurrent),
    ((nn.MultiheadAttention,), _attention),
    ((nn.PReLU,), _slope),
    ((nn.Transformer,), _transformer),
)
"""Rules by kind of layer; subclasses follow the layer they come from."""
