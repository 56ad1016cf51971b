"""Faults for tools/mutants.py: a description, a text of the package, and the text that replaces it.

In C++, FAULT is true while the fault is switched on."""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    old: str
    new: str


class Area(NamedTuple):
    tests: list[str]
    faults: list[Fault]
    compiled: bool = False
    marked: bool = False  # its tests carry a mark and are not in the short suite


AREAS = {
    "mappings": Area(
        ["tests/test_mappings.py", "tests/test_gradients.py"],
        [
            Fault(
                "sparsegen_lin divides by 1 + lam",
                "d.clamp(min=lam - 1) / (1 - lam)",
                "d.clamp(min=lam - 1) / (1 + lam)",
            ),
            Fault(
                "sparsegen_lin without the cut that prevents overflow",
                "d.clamp(min=lam - 1) / (1 - lam)",
                "d / (1 - lam)",
            ),
            Fault("sparsegen_exp multiplies by 1 - lam", "(m - log_width)", "(m + log_width)"),
            Fault("sparsegen_exp without the cut of the exponent", ".clamp(max=exp_limit(x)).exp()", ".exp()"),
            Fault("sparsehourglass forgets 1 / n", "(1 / n + q) /", "(1 + q) /"),
            Fault("sparsehourglass without the absolute value", "(mean.abs() + q)", "(mean + q)"),
            Fault(
                "sparsehourglass counts removed entries",
                "n = kept.sum(-1, keepdim=True, dtype=x.dtype).clamp(min=1)",
                "n = torch.ones_like(x).sum(-1, keepdim=True)",
            ),
        ],
    ),
    "rows": Area(
        ["tests/test_rows.py", "tests/test_mappings.py"],
        [
            Fault("the first dimension is refused", "-last - 1 <= dim <= last", "-last <= dim <= last"),
            Fault("the mask is inverted", "x.masked_fill(~mask, -math.inf)", "x.masked_fill(mask, -math.inf)"),
            Fault("+inf is not NaN", ".masked_fill(m == math.inf, math.nan)", ""),
            Fault("an empty row has maximum -inf", ".masked_fill(m == -math.inf, 0)", ""),
            Fault(
                "removed entries come back",
                "torch.where(kept, g(torch.where(kept, x, 0)), -math.inf)",
                "g(torch.where(kept, x, 0))",
            ),
            Fault("the result keeps its dimension last", ".movedim(-1, dim)", ""),
            Fault(
                "the result has another dtype", "return p if p.dtype == x.dtype else p.to(x.dtype)", "return p.float()"
            ),
            Fault("a value outside the domain is accepted in a tensor", "    if outside.numel():\n", "    if False:\n"),
            Fault(
                "a number outside the domain is accepted", "        if not contains(value):\n", "        if False:\n"
            ),
            Fault(
                "an unknown value outside the domain stays",
                "return torch.where(inside, value, math.nan)",
                "return value",
            ),
            Fault(
                "the remedy for a shape is wrong", "if tensor.shape == without_row", "if tensor.shape != without_row"
            ),
            Fault(
                "the weight of a removed entry is checked",
                "torch.where(arguments[0], broadcast(name, parameter.name, value, x.shape), 0)",
                "broadcast(name, parameter.name, value, x.shape)",
            ),
        ],
    ),
    "reference": Area(
        ["tests/test_mappings.py", "tests/test_gradients.py"],
        [
            Fault("softmax shifts by nothing", "_share(torch.exp(x - row_max(x).detach()))", "_share(torch.exp(x))"),
            Fault("weighted_softmax without its clamp", "(x - shift).clamp(max=exp_limit(x))", "(x - shift)"),
            Fault("t_softmax keeps entries exactly t below the maximum", "support = ~(d <= -t)", "support = ~(d < -t)"),
            Fault("t_softmax with t = 1e-30 divides by zero", "t = max(t, smallest(x))", "t = t"),
            Fault("r_softmax loses the maximum at r = 1", "support = (x > floor) | (x == m)", "support = x > floor"),
            Fault("r_softmax keeps the entry at the threshold", "support = (x > floor)", "support = (x >= floor)"),
            Fault("r_softmax interpolates the wrong way", "(1 - f).to(x.dtype)", "f.to(x.dtype)"),
            Fault(
                "r_softmax at r = 0 in a tensor is not softmax",
                "floor = lo.masked_fill(dense, -math.inf)",
                "floor = lo",
            ),
            Fault("detach_threshold is ignored", "    if detach_threshold:\n", "    if False:\n"),
            Fault(
                "the rank is rounded to float32",
                "rank, dense = r * last.to(exact(x))",
                "rank, dense = r * last.float()",
            ),
            Fault(
                "the upper neighbour of the quantile is the lower",
                "(from_top - 1).clamp(min=0)",
                "from_top.clamp(min=0)",
            ),
            Fault(
                "a spread beyond the float range overflows",
                "torch.where((m - lo).isinf(), 0.5, 1.0)",
                "torch.where((m - lo).isinf(), 1.0, 1.0)",
            ),
            Fault("sparsemax cuts at half", "d.detach().clamp(min=-1).sort", "d.detach().clamp(min=-0.5).sort"),
            Fault(
                "sparsemax without its last correction of tau",
                "tau = (torch.where(support, d, 0).sum(-1, keepdim=True) - 1)",
                "tau = (torch.where(support, d, 0).sum(-1, keepdim=True).detach() - 1)",
            ),
            Fault("entmax15 forgets the square of the mean", "(mean_square - mean * mean)", "mean_square"),
            Fault("entmax with one Newton step", "for _ in range(2):", "for _ in range(1):"),
            Fault(
                "entmax at 1.5 is sparsemax",
                "_ENTMAX = {1.0: softmax, 1.5: entmax15,",
                "_ENTMAX = {1.0: softmax, 1.5: sparsemax,",
            ),
            Fault(
                "entmax starts the bisection at half of the entries",
                "-kept.clamp(min=1).to(d.dtype).log()",
                "-(kept / 2).clamp(min=1).to(d.dtype).log()",
            ),
            Fault(
                "spherical_softmax gives removed entries a share of a zero row",
                "torch.where(kept & (scale == 0), 1, z * z)",
                "torch.where(scale == 0, 1, z * z)",
            ),
            Fault("an empty row is NaN", "mass / total.masked_fill(total == 0, 1)", "mass / total"),
        ],
    ),
    "losses": Area(
        ["tests/test_labels_losses.py", "tests/test_fenchel_young.py"],
        [
            Fault("the hinge has margin 1", "_over_pairs(z - margin * y, 1 - y, y)", "_over_pairs(z - y, 1 - y, y)"),
            Fault("tied pairs count as above", "(uppers - upper).gather(-1, first)", "(uppers - upper)"),
            Fault("ignored targets count in the mean", "loss.sum() / counts.sum()", "loss.mean()"),
            Fault(
                "the entropy lacks its factor",
                "_expm1_quotient((alpha - 1) * log_p) / alpha",
                "_expm1_quotient((alpha - 1) * log_p)",
            ),
            Fault("zlpr swaps the signs", "(-z).masked_fill(y == 0, never)", "z.masked_fill(y == 0, never)"),
        ],
    ),
    "decoding": Area(
        ["tests/test_labels_decoding.py", "tests/test_labels_head.py", "tests/test_sklearn_expected_f1.py"],
        [
            Fault(
                "beta is not squared",
                "(k + beta**2 * pi.sum(-1, keepdim=True))",
                "(k + beta * pi.sum(-1, keepdim=True))",
            ),
            Fault(
                "the smallest allowed count is not added", "return min_labels + allowed.argmax", "return allowed.argmax"
            ),
            Fault(
                "the largest allowed count is one too few",
                "None if max_labels is None else max_labels + 1",
                "None if max_labels is None else max_labels",
            ),
            Fault(
                "weights of rows do not count",
                "above = weight * (pi > spread(share))",
                "above = (pi > spread(share)).to(pi)",
            ),
            Fault(
                "macro is samples",
                '"macro": (-2,), "samples": (-1,)}[average]\n    weight',
                '"macro": (-1,), "samples": (-1,)}[average]\n    weight',
            ),
            Fault(
                "the threshold is F, not its share",
                "share = maximise_ratio(pi, weight, expected, lambda values: values.sum(",
                "share = maximise_ratio(pi, weight, expected / beta**2, lambda values: values.sum(",
            ),
            Fault("no label is likely when labels are", "log_p = -F.softplus(u)", "log_p = -F.softplus(-u)"),
            Fault("NaN looks like no label", "mask=(k > 0) | has_nan)", "mask=k > 0)"),
            Fault("keep_above adds the threshold", "F.relu(z - theta)", "F.relu(z + theta)"),
            Fault(
                "ties are broken from the end",
                "descending=True, stable=True).argsort(-1)\n    return ranks.lt(k)",
                "descending=True).argsort(-1)\n    return ranks.le(k)",
            ),
            Fault(
                "the rate of a count is not exact",
                "return (labels - k).to(exact(z)) / labels",
                "return 1 - k.float() / labels",
            ),
        ],
    ),
    "decoder": Area(
        ["tests/test_labels_decoding.py", "tests/test_labels_head.py", "tests/test_sklearn_expected_f1.py"],
        [
            Fault("a label at the threshold is taken", "k = (margin > 0)", "k = (margin >= 0)"),
            Fault(
                "the bounds are ignored",
                ".sum(-1, keepdim=True).clamp(self.min_labels, self.max_labels)",
                ".sum(-1, keepdim=True)",
            ),
            Fault(
                "the decoder's thresholds ignore weights",
                "counted = known if weight is None else known * weight",
                "counted = known",
            ),
            Fault("reset keeps the threshold", "        self.threshold.zero_()\n", "        pass\n"),
            Fault(
                "an unknown label counts as no label",
                "(~some).double().where(some | ~y.isnan().any(-1, keepdim=True), torch.nan)",
                "(~some).double()",
            ),
            Fault(
                "the margin is not what was decided by",
                "return Decoded(odds, margin, k)",
                "return Decoded(odds, odds, k)",
            ),
            Fault(
                "beta is forgotten at the threshold",
                "expected_f1_threshold(odds.where(known, 0), self.average, beta=self.beta, weight=counted)",
                "expected_f1_threshold(odds.where(known, 0), self.average, weight=counted)",
            ),
        ],
    ),
    "calibration": Area(
        ["tests/test_labels_calibration.py", "tests/test_labels_decoding.py"],
        [
            Fault("slopes may be negative", "    turned = lines[0] < 0\n", "    turned = lines[0] < -torch.inf\n"),
            Fault(
                "labels are not shrunk to the common line",
                "prior=self.prior, ridge=ridge)",
                "prior=self.prior, ridge=0.0)",
            ),
            Fault(
                "weights do not count",
                "for entries in (u, y, weight.expand_as(u))",
                "for entries in (u, y, torch.ones_like(u))",
            ),
            Fault("unknown labels count", "known = ~u.isnan() & ~y.isnan()", "known = ~u.isnan()"),
            Fault(
                "the offset is forgotten",
                "self.slope.to(u.dtype) * u + self.offset.to(u.dtype)",
                "self.slope.to(u.dtype) * u",
            ),
            Fault("one step of Newton's method", "STEPS, HALVINGS = 200, 40", "STEPS, HALVINGS = 1, 40"),
        ],
    ),
    "graph": Area(
        ["tests/test_graph_ops.py", "tests/test_transforms.py", "tests/test_gradients.py"],
        [
            Fault(
                "backward forgets which kernel ran forward", "    if by_kernel:  # as forward did\n", "    if True:\n"
            ),
            Fault(
                "forward derivatives are zero",
                "        if in_forward_mode():  # a graph",
                "        if False:  # a graph",
            ),
            Fault(
                "a compiled graph has no gradient in the parameter",
                "d.to(inputs[place].dtype) if need else None",
                "(d * (place == 0)).to(inputs[place].dtype) if need else None",
            ),
            Fault(
                "a number is rounded in a graph",
                "(torch.zeros((), dtype=exact(x), device=x.device) + value)",
                "(torch.zeros((), dtype=x.dtype, device=x.device) + value)",
            ),
            Fault(
                "detach_threshold is lost in a graph",
                'edge, detach = options.get("edge", math.inf), options.get("detach_threshold", False)',
                'edge, detach = options.get("edge", math.inf), False',
            ),
            Fault(
                "second derivatives come from the kernel",
                "if torch.is_grad_enabled() or not ctx.kernel.supports_call(",
                "if not ctx.kernel.supports_call(",
            ),
            Fault(
                "exported graphs hold the operator",
                "return is_compiling() and not _is_exporting() and _untransformed()",
                "return is_compiling() and _untransformed()",
            ),
        ],
        marked=True,
    ),
    "attention": Area(
        ["tests/test_attention.py"],
        [
            Fault(
                "a causal query does not see its own key",
                "device=s.device) <= query[:, None]",
                "device=s.device) < query[:, None]",
            ),
            Fault("the scale is ignored", "beta=0, alpha=call.scale)", "beta=0, alpha=1.0)"),
            Fault("every block is the first", "p = weights_of(part, block.rows.start)", "p = weights_of(part, 0)"),
            Fault(
                "a causal block misses its last key",
                "seen = min(end, length) if call.is_causal",
                "seen = min(end, length - 1) if call.is_causal",
            ),
            Fault("gradients ignore dropout", "        dp *= factors\n", "        pass\n"),
            Fault(
                "the gradient of keys lacks the scale",
                "matrices(d.k).baddbmm_(ds.mT, matrices(call.q), alpha=call.scale)",
                "matrices(d.k).baddbmm_(ds.mT, matrices(call.q))",
            ),
            Fault("only the last block counts in the gradient of the bias", "d.bias.add_(", "d.bias.copy_("),
            Fault(
                "dropout changes the mean",
                "STEPS / (STEPS - dropped) if dropped < STEPS else 0",
                "1 if dropped < STEPS else 0",
            ),
            Fault(
                "heads of queries share the dropout",
                "torch.arange(math.prod(full[:-1]), device=like.device).reshape(full[:-1])[part[:-1]]",
                "torch.arange(full[-2], device=like.device).expand(full[:-1])[part[:-1]]",
            ),
            Fault(
                "a parameter for each head is taken as one for each row",
                "value = value[:, None, None]",
                "value = value[:, None]",
            ),
            Fault(
                "backward computes rows with other kernels than forward",
                "        with use_kernels(how.rows):\n            return blocks.backward",
                "        with use_kernels(get_kernels()):\n            return blocks.backward",
            ),
        ],
    ),
    "files": Area(
        ["tests/test_files_folders.py", "tests/test_sklearn_table_model.py"],
        [
            Fault("a foreign folder may be overwritten", "    if foreign:\n", "    if False:\n"),
            Fault(
                "an unfinished save stays",
                "        for leftover in _leftovers(folder):\n            _remove_if_dead(leftover)\n",
                "",
            ),
            Fault(
                "every config.json is a saved model",
                "return kind if isinstance(kind, str) and kind in KINDS else None",
                "return kind",
            ),
            Fault(
                "damaged settings are not noticed", "except (OSError, ValueError, RecursionError):", "except OSError:"
            ),
        ],
    ),
    "cpp": Area(
        ["tests/test_kernels.py", "tests/test_attention_kernel.py"],
        [
            Fault(
                "r_softmax accepts a rate out of range",
                "{ return by.is_count ? by.value >= 1 : by.value >= 0 && by.value <= 1; }",
                "{ return FAULT || (by.is_count ? by.value >= 1 : by.value >= 0 && by.value <= 1); }",
            ),
            Fault("r_softmax: ties at the top", "s.lo == s.m", "!FAULT && s.lo == s.m"),
            Fault(
                "r_softmax: the rank is rounded to float",
                ": by.value * (kept - 1)), slope",
                ": FAULT ? double(float(by.value) * float(kept - 1)) : by.value * (kept - 1)), slope",
            ),
            Fault(
                "normalisation without its correction",
                "return q + (v - q * total) * inverse;",
                "return FAULT ? q : q + (v - q * total) * inverse;",
            ),
            Fault("the gradient forgets the weights", "(q + u) * h", "(FAULT ? q : q + u) * h"),
            Fault(
                "the gradient of a projection forgets the mean",
                "total == 0 ? 0 : product.get() / total",
                "total == 0 || FAULT ? 0 : product.get() / total",
            ),
            Fault(
                "NaN is overlooked", "!Op::valid(by) || extent.has_bad", "!Op::valid(by) || (!FAULT && extent.has_bad)"
            ),
            Fault("the last keys of a mask are kept", "!mask[i * step]", "!FAULT && !mask[i * step]"),
            Fault(
                "dropout is off by one",
                "(I<float>)draws >= int32_t(dropped)",
                "(I<float>)draws >= int32_t(dropped) + FAULT",
            ),
            Fault(
                "the guess of a quantile is believed too often",
                "c.le <= j && j + 1 < c.le + c.in",
                "c.le <= j && j + !FAULT < c.le + c.in",
            ),
            Fault(
                "a causal row sees one key less",
                "std::min<long>(query.row + 1, call.length)",
                "std::min<long>(FAULT ? std::max<long>(query.row, 1) : query.row + 1, call.length)",
            ),
            Fault(
                "attention: the gradient of a projection forgets the norm",
                "product.get() / norm.get()",
                "product.get() / (FAULT ? 1 : norm.get())",
            ),
            Fault(
                "attention: the threshold passes nothing to the keys",
                "add_multiple(pass.dk + key * room, float(a),",
                "add_multiple(pass.dk + key * room, FAULT ? 0.f : float(a),",
            ),
            Fault("selection: ties among neighbours", "j + 1 < c.le ? a", "j + !FAULT < c.le ? a"),
            Fault(
                "side by side: the entry exactly t below the maximum is kept",
                "given == 0 ? V<T>{} : (V<T>)next",
                "given == 0 ? V<T>{} : FAULT ? -given : (V<T>)next",
            ),
        ],
        compiled=True,
    ),
}
