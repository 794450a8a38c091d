"""Rules for operations that compute: elementwise ones, contractions, norms, pooling."""

from collections.abc import Sequence
from typing import Any

from polo.alignment import axes
from polo.alignment.axes import ONE, MismatchError, Term
from polo.alignment.rules import Axes, Context, Value, broadcast, is_tensor, rule, unknown

# Elementwise -------------------------------------------------------------------------------


@rule(
    "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "pow", "hardswish", "elu",
    "selu", "celu", "softplus", "mish", "hardsigmoid", "hardtanh", "relu6", "clamp", "clamp_min",
    "clamp_max", "erf", "sin", "cos", "square", "reciprocal", "log_sigmoid", "softsign", "eq",
    "ne", "lt", "le", "gt", "ge", "where", "masked_fill", "logical_and", "logical_or",
    "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "__and__", "__or__", "isinf",
    "isnan", "floor", "round", "log1p", "expm1", "exp2", "remainder", "floor_divide",
)  # fmt: skip
def bending(context: Context, *values: Value, **_: Any) -> Value:
    """Elementwise, and scaling does not pass through."""
    tensors = [value for value in values if is_tensor(value)]
    made = []
    for terms in broadcast(context, tensors):
        wide = [term for term in terms if term.size > 1]
        context.labels.zero(*wide)
        axes.mark("bent", *wide)
        made.append(context.labels.derive((1.0, wide[0])) if wide else ONE)
    return tuple(made)


@rule("relu", "leaky_relu", "abs", "prelu")
def homogeneous(context: Context, value: Value, weight: Value = None, *_: Any, **__: Any) -> Value:
    """Elementwise; positive scaling passes through. A PReLU's slopes belong to channels."""
    terms = context.settled(value)
    axes.mark("bent", *terms)
    if is_tensor(weight):
        slope = context.settled(weight)[0] if context.settled(weight) else ONE
        if slope.size > 1:
            axes.unify(terms[1], slope)
        context.labels.zero(slope)
    return tuple(context.labels.derive((1.0, term)) for term in terms)


@rule("dropout", "alpha_dropout", "feature_dropout", "contiguous", "clone", "to", "_to_copy",
      "detach", "alias", "type_as", "neg", "lift_fresh_copy", "positive", "native_dropout",
      "dropout2d", "_assert_tensor_metadata")  # fmt: skip
def passing(context: Context, value: Value, *_: Any, **__: Any) -> Value:
    """Nothing happens to axes or scales."""
    return value


@rule("add", "sub", "rsub", "maximum", "minimum")
def addition(context: Context, *values: Value, **_: Any) -> Value:
    """All sides are scaled alike; what is broadcast, or a number, fixes the scale."""
    tensors = [value for value in values if is_tensor(value)]
    numbers = [v for v in values if isinstance(v, int | float) and v != 0]
    made = []
    for terms in broadcast(context, tensors):
        wide = [term for term in terms if term.size > 1]
        if len(wide) < len(terms) or (numbers and len(tensors) < 2):
            context.labels.zero(*wide)
        if context.operation in ("maximum", "minimum"):
            axes.mark("bent", *wide)
        for term in wide[1:]:
            context.labels.equal(wide[0], term)
        made.append(context.labels.derive((1.0, wide[0])) if wide else ONE)
    return tuple(made)


@rule("mul", "div")
def multiplication(context: Context, one: Value, other: Value, **_: Any) -> Value:
    """Scales multiply. A number changes nothing."""
    if not is_tensor(other):
        return tuple(context.labels.derive((1.0, term)) for term in context.settled(one))
    sign = -1.0 if context.operation == "div" else 1.0
    if not is_tensor(one):
        axes.mark("bent", *context.settled(other))
        return tuple(context.labels.derive((sign, term)) for term in context.settled(other))
    made = []
    for left, right in broadcast(context, [one, other]):
        axes.mark("bent", left, right)
        sources = [(c, term) for c, term in ((1.0, left), (sign, right)) if term.size > 1]
        made.append(context.labels.derive(*sources) if sources else ONE)
    return tuple(made)


# Contractions ------------------------------------------------------------------------------


def contract(
    context: Context, one: Value, two: Value, letters: tuple[str, str], result: str
) -> Value:
    """A sum of products over named axes, as in Einstein's notation."""
    sides = [
        dict(zip(names, context.settled(value), strict=True))
        for names, value in zip(letters, (one, two), strict=True)
    ]
    made: dict[str, Term] = {}
    for name in dict.fromkeys(letters[0] + letters[1]):
        terms = [side[name] for side in sides if name in side and side[name].size > 1]
        if len(terms) == 2:
            axes.unify(*terms)
        if name in result:
            made[name] = context.labels.derive(*((1.0, t) for t in terms)) if terms else ONE
        elif len(terms) == 2:
            context.labels.contracted.extend(terms)
            context.labels.equations.append([(1.0, term) for term in terms])
        else:
            axes.mark("reduced", *terms)
            context.labels.zero(*terms)
    lone = [[t for name, t in side.items() if name not in other] for side, other in
            ((sides[0], sides[1]), (sides[1], sides[0]))]  # fmt: skip
    context.crossed.extend((a, b) for a in lone[0] for b in lone[1])
    return tuple(made[name] for name in result)


def shifted(context: Context, value: Axes, bias: Value, axis: int) -> Axes:
    """A result plus a bias along one axis, which fixes the scale of all others."""
    if not is_tensor(bias):
        return value
    (term,) = context.settled(bias)
    axes.unify(value[axis], term)
    context.labels.equal(value[axis], term)
    others = [other for at, other in enumerate(value) if at != axis % len(value)]
    context.labels.zero(*others)
    return value


@rule("linear")
def linear(context: Context, value: Value, weight: Value, bias: Value = None) -> Value:
    """A fully connected layer."""
    rank = len(context.settled(value))
    lead = "".join(chr(97 + at) for at in range(rank - 1))
    made = contract(context, value, weight, (f"{lead}I", "OI"), f"{lead}O")
    return shifted(context, made, bias, -1)


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(context: Context, one: Value, two: Value) -> Value:
    """Matrix products, batched or not."""
    ranks = len(context.settled(one)), len(context.settled(two))
    lead = "abcdefghijkl"[: max(0, *(rank - 2 for rank in ranks))]
    left = lead[len(lead) - max(0, ranks[0] - 2) :] + ("MI" if ranks[0] > 1 else "I")
    right = lead[len(lead) - max(0, ranks[1] - 2) :] + ("IN" if ranks[1] > 1 else "I")
    result = lead + "M" * (ranks[0] > 1) + "N" * (ranks[1] > 1)
    return contract(context, one, two, (left, right), result)


@rule("addmm", "baddbmm")
def addmm(context: Context, bias: Value, one: Value, two: Value, **_: Any) -> Value:
    """A matrix product plus something."""
    return addition(context, matmul(context, one, two), bias)


@rule("einsum")
def einsum(context: Context, equation: str, values: Sequence[Value], **_: Any) -> Value:
    """Einstein sums of two tensors in plain notation."""
    inputs, _arrow, result = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    plain = all(len(set(names)) == len(names) and "." not in names for names in letters)
    if len(letters) != 2 or not plain or not result:
        return unknown(context, "einsum", list(values))
    return contract(context, values[0], values[1], (letters[0], letters[1]), result)


@rule("conv1d", "conv2d", "conv3d")
def convolution(
    context: Context, value: Value, weight: Value, bias: Value = None, *rest: Any, **named: Any
) -> Value:
    """A convolution: positions are told apart, channels are not."""
    groups = int(rest[3]) if len(rest) > 3 else int(named.get("groups", 1))
    assert context.shape is not None
    terms, kernel = context.settled(value), context.settled(weight)
    if len(terms) != len(kernel):
        return unknown(context, "unbatched convolution", [value, weight])
    axes.freeze(*terms[2:], *kernel[2:])
    positions = context.fresh(context.shape[2:])
    channels = _channels(context, terms[1], kernel, groups)
    made = (terms[0], channels, *positions)
    return shifted(context, made, bias, 1)


def _channels(context: Context, inputs: Term, kernel: Axes, groups: int) -> Term:
    if groups == 1:
        if inputs.size > 1:
            axes.unify(inputs, kernel[1])
            context.labels.contracted.extend([inputs, kernel[1]])
            context.labels.equations.append([(1.0, inputs), (1.0, kernel[1])])
        return context.labels.derive((1.0, kernel[0]))
    try:
        group, within = axes.cut_product(inputs, groups)
        out_group, out_within = axes.cut_product(kernel[0], groups)
    except MismatchError:
        axes.freeze(inputs, *kernel)
        return context.labels.new(kernel[0].size, frozen=True)
    axes.unify(group, out_group)
    if within.size > 1:
        axes.unify(within, kernel[1])
        context.labels.contracted.extend([within, kernel[1]])
        context.labels.equations.append([(1.0, within), (1.0, kernel[1])])
    parts = [context.labels.derive((1.0, out_group), (1.0, group))]
    if out_within.size > 1:
        parts.append(context.labels.derive((1.0, out_within)))
    return axes.product(parts)


@rule("scaled_dot_product_attention")
def attention(
    context: Context, query: Value, key: Value, value: Value, *rest: Any, **named: Any
) -> Value:
    """Attention: heads and their dimensions are free, positions only without a mask."""
    mask = rest[0] if rest else named.get("attn_mask")
    causal = bool(rest[2]) if len(rest) > 2 else bool(named.get("is_causal", False))
    rank = len(context.settled(query))
    lead = "abcdefghijkl"[: rank - 2]
    scores = contract(context, query, key, (f"{lead}QE", f"{lead}KE"), f"{lead}QK")
    if causal:
        axes.freeze(*scores[-2:])
    if is_tensor(mask):
        scores = addition(context, scores, mask)
    weights = softmax(context, scores, -1)
    context.inner.append(weights)
    return contract(context, weights, value, (f"{lead}QK", f"{lead}KV"), f"{lead}QV")


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax")
def softmax(context: Context, value: Value, dim: int = -1, *_: Any, **__: Any) -> Value:
    """Order does not matter to it; scale does."""
    terms = context.settled(value)
    axes.mark("reduced", terms[dim])
    at = dim % len(terms)
    context.inner.append((*terms[:at], *terms[at + 1 :]))
    return bending(context, value)


# Norms and pooling -------------------------------------------------------------------------


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def batch_norm(
    context: Context, value: Value, weight: Value, bias: Value, mean: Value, variance: Value,
    *rest: Any, **named: Any,
) -> Value:  # fmt: skip
    """Batch-norm in evaluation: statistics take up the scale before, γ and β set the one after."""
    training = bool(rest[0]) if len(rest) == 4 else False
    if not is_tensor(mean) or not is_tensor(variance) or training:
        tensors = [v for v in (value, weight, bias, mean, variance) if is_tensor(v)]
        return unknown(context, "batch_norm without statistics", tensors)
    terms = context.settled(value)
    eps = float(rest[2] if len(rest) == 4 else rest[-1]) if rest else float(named["eps"])
    channel, labels = terms[1], context.labels
    for part in (mean, variance, weight, bias):
        if is_tensor(part):
            axes.unify(channel, context.settled(part)[0])
    axes.mark("bent", channel)
    labels.equal(channel, context.settled(mean)[0])
    spread = context.settled(variance)[0]
    labels.kept.append(spread)
    labels.equations.append([(2.0, channel), (-1.0, spread)])
    context.norms.append((spread, eps))
    made = _affine(context, channel, weight, bias)
    return (terms[0], made, *terms[2:])


def _affine(context: Context, channel: Term, weight: Value, bias: Value) -> Term:
    """The axis after normalisation, times γ, plus β."""
    source = context.settled(weight)[0] if is_tensor(weight) else None
    made = context.labels.derive((1.0, source if source is not None else channel))
    if source is None:
        context.labels.equations[-1] = [(1.0, made)]
    if is_tensor(bias):
        context.labels.equal(made, context.settled(bias)[0])
    return made


@rule("layer_norm", "rms_norm", "native_layer_norm")
def layer_norm(
    context: Context, value: Value, shape: Sequence[int], weight: Value = None, bias: Value = None,
    *_: Any, **__: Any,
) -> Value:  # fmt: skip
    """Layer-norm: no scale comes in; γ and β set the one that goes out."""
    terms = context.settled(value)
    normal = terms[-len(shape) :]
    axes.mark("reduced", *normal)
    axes.mark("bent", *normal)
    context.labels.zero(*terms)
    context.inner.append(terms[: -len(shape)])
    if len(shape) > 1:
        return bending(context, value, *(v for v in (weight, bias) if is_tensor(v)))
    for part in (weight, bias):
        if is_tensor(part):
            axes.unify(normal[0], context.settled(part)[0])
    return (*terms[:-1], _affine(context, normal[0], weight, bias))


@rule("group_norm", "instance_norm")
def group_norm(context: Context, value: Value, groups: Any, *rest: Any, **named: Any) -> Value:
    """Group-norm: channels may move within their group, and groups as a whole."""
    terms = context.settled(value)
    if not isinstance(groups, int):
        return unknown(context, "instance_norm", [value, *(v for v in rest if is_tensor(v))])
    try:
        group, within = axes.cut_product(terms[1], groups)
    except MismatchError:
        axes.freeze(terms[1])
        group, within = terms[1], ONE
    context.inner.append((terms[0], group))
    axes.mark("reduced", within)
    axes.mark("bent", terms[1])
    context.labels.zero(*terms)
    affine = [*rest[:2], None, None][:2]
    weight, bias = named.get("weight", affine[0]), named.get("bias", affine[1])
    for part in (weight, bias):
        if is_tensor(part):
            axes.unify(terms[1], context.settled(part)[0])
    return (terms[0], _affine(context, terms[1], weight, bias), *terms[2:])


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
      "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d",
      "upsample_bilinear2d", "lp_pool2d", "max_pool2d_with_indices")  # fmt: skip
def pooling(context: Context, value: Value, *_: Any, **__: Any) -> Value:
    """Positions are told apart; positive scaling of channels passes through."""
    terms = context.settled(value)
    if context.shape is None:
        return unknown(context, "pooling with indices", [value])
    same = [a.size == b for a, b in zip(terms, context.shape, strict=True)]
    first = same.index(False) if False in same else len(terms)
    axes.freeze(*terms[first:])
    axes.mark("bent", *terms)
    return (*terms[:first], *context.fresh(context.shape[first:]))


@rule("mean", "sum", "amax", "amin")
def reduction(
    context: Context, value: Value, dims: Any = None, keep: bool = False, **_: Any
) -> Value:
    """A sum over axes without weights."""
    terms = context.settled(value)
    chosen = dims if isinstance(dims, list | tuple) else [dims]
    gone = {d % len(terms) for d in chosen if isinstance(d, int)} or set(range(len(terms)))
    for at in gone:
        axes.mark("reduced", terms[at])
        context.labels.zero(terms[at])
    if context.operation in ("amax", "amin"):
        axes.mark("bent", *terms)
    left = [(at, context.labels.derive((1.0, term))) for at, term in enumerate(terms)]
    return tuple(ONE if at in gone else term for at, term in left if keep or at not in gone)
