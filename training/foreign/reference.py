"""The reference: Algorithms 4 to 10 in NumPy, all tokens and heads at once, where any place may hold another choice.

The judge is the oracle; the tests compare the two, to 1e-12. Parameters are a flat dictionary of the paper's names:
W_e, W_p, W_u, "l1/W_q" [H, d_attn, d_x], "l1/gamma_1", ...
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .attention import Attention
from .catalogue import choice
from .run import Choices, Key, Named, StopRun

__all__ = ["Reference", "gradient"]

Sublayer = Callable[[Named], Named]

BATCH = 96  # number of complex steps in a run


class Reference(Attention):
    """A run of a case's algorithm."""

    def go(self) -> "Reference":
        """Run the algorithm until its end, or until the budget of missed lines is spent."""
        case, n = self.case, self.case.algorithm
        try:
            if n in (8, 9, 10):
                {8: self._ed_transformer, 9: self._e_transformer, 10: self._d_transformer}[n]()
            elif n == 6:
                self.norm("", self._given("e"), ("gamma", "beta"))
            elif n == 7:
                self.unembed(self._given("e"), 7)
            else:
                self.attention("", self._given("X"), self._given("Z"), "", np.asarray(case.inputs["Mask"], bool))
        except StopRun:
            pass
        return self

    def _given(self, name: str) -> Named:
        X = np.asarray(self.case.inputs[name], np.float64)[None]
        return Named(X + np.zeros((self.R, *X.shape[1:])), Key("", self.case.algorithm, name))

    def _sum(self, key: Key, place: str, X: Named, Xt: Named, A: Any, of: list[Named]) -> Named:
        """The sum of X and A, which is of other lines; `place`: where the choice is; `Xt`: the normalized X."""
        how = self.name("residual", place)

        def total() -> Any:
            Y = self.use("residual", place)(X.value, Xt.value, A)
            return self.off(Y, np.abs(X.value) + np.abs(Xt.value) + np.abs(A)) if self.epsilon else Y

        return self.line(key, total, [X] if how == "skip" else of if how == "none" else [X, *of])

    def _sublayer(
        self, order: str, X: Named, norm: tuple[str, Any, Any], f: Sublayer, key: Key, before: Named | None = None
    ) -> Named:
        """X + f(norm(X)), X + norm(f(X)) or norm(X + f(X)); `norm`: its arguments; `key`: of the sum; `before`: X before
        the sublayer before.
        """
        place, *names = norm
        order = self.use("order", place, Key(place, 6, "return")) or order
        Xt = self.norm(place, X, *names) if order == "norm_first" else X
        A = f(Xt)
        A = self.norm(place, A, *names) if order == "norm_out" else A
        X = X if before is None or self.name("residual", key.place) != "before" else before
        X = self._sum(key, key.place, X, Xt, A.value, [A])
        if key.place in self.of_sums:
            X = self.norm(f"{key.place}/out", X, self.of_sums.pop(key.place))
        return X if order in ("norm_first", "norm_out") else self.norm(place, X, *names)

    def _out(self, place: str, prefix: str, name: str, A: Named) -> Named:
        """The output of a sublayer, with the post-norm of some models."""
        at, names = f"{place}/out", (f"{prefix}gamma_{name}_out", f"{prefix}beta_{name}_out")
        if self.p(names[0]) is not None and self.use("post_norm", at, Key(at, 6, "return")):
            self.of_sums[place] = names
            return A
        return self.norm(at, A, names)

    def _loop(self, name: str, L: int, key: Callable[[str], Key]) -> Iterator[tuple[str, str]]:
        """The places and the prefixes of layers, of which some may share their parameters."""
        prefixes = {n[: n.find("/") + 1] for n in self.theta}
        own = sum(f"{name}{l + 1}/" in prefixes for l in range(L))
        for l in range(L):
            place = f"{name}{l + 1}"
            n = self.use("layer", place, key(place))(l, L)
            if n is not None:
                yield place, f"{name}{n * own // L + 1}/"

    def _layers(self, name: str, X: Named, L: int, algorithm: int, mask: Any) -> Named:
        """The loop of Algorithms 9, 10 and of the encoder of 8."""
        is_decoder = algorithm == 10
        attention, norm1, mlp, norm2 = ("6", "5", "8", "7") if is_decoder else ("5", "6", "7", "8")
        order = "norm_first" if is_decoder else "norm_last"
        for place, prefix in self._loop(name, L, lambda place: Key(place, algorithm, attention)):
            around = [(f"{prefix}gamma_{i}", f"{prefix}beta_{i}") for i in (1, 2)]
            pa, pm = f"{place}/{attention}", f"{place}/{mlp}"
            here: list[Named] = [X]  # of this layer, the stream before and behind attention

            def attend(X: Named, pa: str = pa, prefix: str = prefix, here: list[Named] = here) -> Named:
                return self._mixed(pa, X, prefix, mask, algorithm, [] if here[0] is X else here[:1])

            def feed(X: Named, pm: str = pm, prefix: str = prefix, here: list[Named] = here) -> Named:
                reads = self.use("reads", pm, Key(pm, algorithm, mlp, "W_mlp1 X + b_mlp1"))
                X = (X, here[-1], here[0])[reads]
                return self._out(pm, prefix, "mlp", self.mlp(pm, X, prefix, "12", algorithm, mlp))

            ka, km = Key(place, algorithm, attention), Key(place, algorithm, mlp)
            first, second = (f"{place}/{norm1}", around[0], around), (f"{place}/{norm2}", around[1], around)
            has_mlp = any(f"{prefix}{W}" in self.theta for W in ("W_mlp1", "W_router"))
            if how := self.use("parallel", place, ka):
                here.append(X)
                normed = self.norm(first[0], X, *first[1:])
                A = attend(normed)
                B = feed(normed if how == "one" else self.norm(second[0], X, *second[1:]))
                X = self._sum(km, pm, X, X, self.use("side_by_side", pm, km)(A.value, B.value), [A, B])
                continue
            X = self._sublayer(order, X, first, attend, Key(pa, algorithm, attention))
            here.append(X)
            kf = Key(pm, algorithm, mlp)
            if has_mlp:
                X = self._sublayer(order, X, second, feed, kf, here[0])
            else:
                X = self.line(kf, lambda X=X: X.value, [X])
            X = self._behind(f"{place}/9", X, f"{prefix}end/", int(place[len(name) :]) - 1)
            self.outputs.append(X)
        return X

    def _mixed(self, place: str, X: Named, prefix: str, mask: Any, algorithm: int, other: Sequence[Named]) -> Named:
        """What attention gives, or a recurrence in its place, or both; `other`: see `attention`."""
        if self.p(f"{prefix}W_r") is not None and self.p(f"{prefix}W_y") is not None:
            return self.rg_lru(place, X, prefix)
        if self.p(f"{prefix}C") is not None:
            return self.short_convolution(place, X, prefix)
        if self.p(f"{prefix}C_q") is not None:
            return self.recurrence(place, X, prefix)
        distances = "distances" if algorithm != 8 else "encoder_distances"
        Y = self.attention(place, X, X, prefix, mask, distances=distances, other=other)
        Y = self._out(place, prefix, "attn", Y)
        if self.p(f"{prefix}recurrence/C_q") is None:
            return Y
        O, key = self.recurrence(place, X, f"{prefix}recurrence/"), Key(place, 10, "6", "Parallel")
        c_1, c_2 = self.use("mixer_sum", place, key)
        return self.line(key, lambda: self.rounded(c_1 * Y.value + c_2 * O.value), [Y, O])

    def _behind(self, place: str, X: Named, prefix: str, l: int) -> Named:
        """What follows the lines of layer l, from 0, in Gemma 4: its own input, and a scalar."""
        s, W_gate, W_o, gamma = (self.p(prefix + name) for name in ("s", "W_gate", "W_o", "gamma"))
        if s is None:
            return X

        def behind() -> Any:
            e = X.value
            if W_gate is not None and self.use("layer_input", place):
                f, epsilon = self.use("activation", place), self.use("norm_epsilon", place)
                Y = self.product(W_o, f(self.product(W_gate, e)) * self.inputs[:, l])
                e = self.sum(e, self.rounded(Y / epsilon((Y * Y).mean(-2, keepdims=True)) * gamma[..., None]))
            return self.rounded(e * self.use("layer_scalar", place)(s)[..., None, None])

        return self.line(Key(place, 10, "9", "behind the layer"), behind, [X])

    def _layer_inputs(self, x: Sequence[int], X: Any) -> Any:
        """The inputs of all layers, [R, L, d, l], of tokens x and their embeddings X; None without parameters."""
        W_e, W_l, gamma = (self.p(f"inputs/{name}") for name in ("W_e", "W_l", "gamma"))
        if W_e is None:
            return None
        key, names = Key("l1/9", 10, "9", "behind the layer"), ("scale", "projection", "sum")
        own, of_X, of_both = (self.use(f"input_{name}", "inputs", key) for name in names)
        shape = -1, self.case.sizes["L"], gamma.shape[-1], len(x)
        Y = (self.product(W_l, X) * of_X(X.shape[-2])).reshape(shape)
        Y = Y / self.use("norm_epsilon", "inputs")((Y * Y).mean(-2, keepdims=True)) * gamma[:, None, :, None]
        return self.rounded(of_both * self.sum(Y, own(gamma.shape[-1]) * W_e[..., np.asarray(x)].reshape(shape)))

    def _d_transformer(self) -> None:
        x = self.case.inputs["x"]
        causal = np.arange(len(x))[:, None] <= np.arange(len(x))[None, :]
        X = self.embed(x, 10, "2")
        self.inputs = self._layer_inputs(x, X.value)
        mask = causal & self._together(len(x)) & _unpadded(len(x), len(x), self.case.inputs.get("length"))
        before = self._layers("l", X, self.case.sizes["L"], 10, mask)
        X = self._last(before, "", [("gamma", "beta")])
        self.unembed(X, 10)
        if "mtp/W_m" in self.theta:
            self._second_head(x, (X, before), mask)

    def _last(self, X: Named, place: str, norms: list[tuple[str, str]]) -> Named:
        """Line 10 of Algorithm 10, and what some decoders have behind it; `norms`: the names of γ and β, and others."""
        X = self._projected(self.norm(f"{place}10", X, norms[0], norms), 10, place)
        return self.norm(f"{place}11", X, ("gamma_f", "beta_f"))

    def _second_head(self, x: Sequence[int], of_model: tuple[Named, Named], mask: Any) -> None:
        """The head for the token after the next; `of_model`: X of line 10, and X before it."""
        y, kx = self.use("mtp_token", "mtp", Key("mtp", 1, "return"))(x), Key("mtp", 10, "10", "X[:, t < ℓ]")
        X, l = of_model[self.use("mtp_reads", "mtp", kx)], len(y)
        X = self.line(kx, lambda: X.value[..., :l], [X])
        norms = [(f"mtp/gamma_{of}", f"mtp/beta_{of}") for of in "ex"]
        e = self.norm("mtp/e", self.embed(y, 10, "2", "mtp"), norms[0], norms)
        X = self.norm("mtp/x", X, norms[1], norms)

        def both() -> Any:
            W_m, d = self.need("mtp/W_m"), X.value.shape[-2]
            first, second = self.use("mtp_order", "mtp")(e.value, X.value)
            return self.sum(self.product(W_m[..., :d], first), self.product(W_m[..., d:], second))

        X = self.line(Key("mtp", 10, "10", "W_m [norm(e); norm(X)]"), both, [e, X])
        X = self._layers("mtp", X, 1, 10, mask[:l, :l])
        first = self.logits, self.log_P
        self.unembed(self._last(X, "mtp/", [("mtp/gamma", "mtp/beta"), ("gamma", "beta")]), 10, "mtp")
        self.log_P_mtp, (self.logits, self.log_P) = self.log_P, first

    def _together(self, l: int) -> Any:
        """The mask of tokens of the same document."""
        documents = np.asarray(self.case.inputs.get("documents", np.zeros(l)))
        return documents[:, None] == documents[None, :]

    def _e_transformer(self) -> None:
        x = self.case.inputs["x"]
        X = self.embed(x, 9, "2")
        mask = _unpadded(len(x), len(x), self.case.inputs.get("length")) & self._together(len(x))
        X = self._layers("l", X, self.case.sizes["L"], 9, mask)
        X = self.extra_norm("9", self.norm("9", X, ("gamma_enc", "beta_enc")), 9, "9")
        self.unembed(self.norm("11", self._projected(X, 9), ("gamma", "beta")), 9)

    def _projected(self, X: Named, algorithm: int, place: str = "") -> Named:
        """Line 10 of Algorithm 9, which some decoders have, too; X where θ has no W_f."""
        W_f, b_f, of = self.p("W_f"), self.p("b_f"), X
        place += "10"
        key = Key(place, algorithm, "10", "f(W_f X + b_f)" if algorithm == 10 else "")
        if W_f is None or not self.use("head", place, key):
            return X
        ku = Key(place, algorithm, "10", "W_f X + b_f")
        U = self.line(ku, lambda: self.linear(W_f, b_f, of.value, "f_bias", place, "f_square"), [of])
        return self.line(key, lambda: self._activated(place, U.value, ""), [U])

    def _ed_transformer(self) -> None:
        z, x, sizes = self.case.inputs["z"], self.case.inputs["x"], self.case.sizes
        embedded = self.embed(z, 8, "2", "encoder", "context/")
        length = self.case.inputs.get("z_length")
        mask = _unpadded(len(z), len(z), length)
        Z = self._layers("enc", embedded, sizes["L_enc"], 8, mask)
        memories = [embedded, *self.outputs]
        Z = self.norm("9", self.extra_norm("9/extra", Z, 8, "9"), ("gamma_enc", "beta_enc"))
        self.pending = [Z.key.id]
        X = self.embed(x, 8, "11", "decoder")
        causal, ones = np.arange(len(x))[:, None] <= np.arange(len(x))[None, :], _unpadded(len(z), len(x), length)
        for place, prefix in self._loop("dec", sizes["L_dec"], lambda place: Key(place, 8, "14")):
            around = [(f"{prefix}gamma_{i}", f"{prefix}beta_{i}") for i in (3, 4, 5)]
            across = prefix + self.use("shared", f"{place}/16", Key(f"{place}/16", 4, "1"))

            def attend(at: str, X: Named, prefix: str = prefix) -> Named:
                A = self.attention(at, X, X, prefix, causal, distances="decoder_distances")
                return self._out(at, prefix, "attn", A)

            def cross(at: str, X: Named, prefix: str = across) -> Named:
                return self._out(at, prefix, "attn", self.attention(at, X, Z, prefix, ones, other=memories))

            def feed(at: str, X: Named, prefix: str = prefix) -> Named:
                return self._out(at, prefix, "mlp", self.mlp(at, X, prefix, "34", 8, "18"))

            for i, (f, n) in enumerate(((attend, 14), (cross, 16), (feed, 18))):
                at, norm = f"{place}/{n}", (f"{place}/{n + 1}", around[i], around)
                X = self._sublayer("norm_last", X, norm, functools.partial(f, at), Key(at, 8, str(n)))
        X = self.norm("20", self.extra_norm("20/extra", X, 8, "20"), ("gamma_dec", "beta_dec"))
        self.unembed(X, 8)
        self.pending = []

    def loss(self, name: str, mtp: str = "") -> Any:
        """The loss of Algorithm 11, 12 or 13, by the choices with a name; `mtp`: of a second head, "" for the run's."""
        slot = "masked_loss" if self.case.algorithm == 9 else "loss"
        inputs = self.case.inputs
        labels = inputs["labels"] if "labels" in inputs else inputs["x"][: inputs.get("length")]
        loss = choice(slot, name).do(self.log_P, np.asarray(labels), inputs.get("masked", ()))
        if self.log_P_mtp is not None:
            loss = loss + choice("mtp_loss", mtp or self.name("mtp_loss", "")).do(self.log_P_mtp, np.asarray(labels))
        return loss


def _unpadded(l_z: int, l_x: int, length: int | None) -> Any:
    """The mask of all tokens, without the padding behind `length`."""
    return np.broadcast_to(np.arange(l_z)[:, None] < (length or l_z), (l_z, l_x))


def gradient(
    case: Any, loss: str | Callable[[Any], Any], choices: Choices | None = None, *, at: Any = None, **options: Any
) -> dict[str, Any]:
    """The gradient of a loss by every parameter, by complex steps: exact to rounding.

    `loss`: a choice's name, or a function of a run, which may give several losses; these axes are in front.

    `at`: of which components only, flat indices by name; the result is flat then; `options`: of the run.
    """
    h, found, parts = 1e-30, {}, []
    of_run = (lambda run: run.loss(loss)) if isinstance(loss, str) else loss
    exact = Reference(case, choices or {}, **options).go()
    steps = [(n, i) for n, W in case.theta.items() for i in (range(W.size) if at is None else at.get(n, ()))]
    for start in range(0, len(steps), BATCH):
        part = steps[start : start + BATCH]
        theta, new = dict(exact.theta), {("θ", n) for n, _ in part}
        for _, name in new:
            W = exact.theta[name]
            stack = np.repeat(W.reshape(1, -1).astype(complex), len(part), axis=0)
            for r, (n, i) in enumerate(part):
                if n == name:
                    stack[r, i] += 1j * h
            theta[name] = stack.reshape(-1, *W.shape[1:])
        run = Reference(case, exact.choices, theta=theta, like=exact, new=new, **options).go()
        several = np.imag(of_run(run)) / h
        parts.append(np.broadcast_to(several, (*several.shape[:-1], len(part))))
    values, counted = np.concatenate(parts, axis=-1), 0
    for name, W in case.theta.items():
        count = W.size if at is None else len(at.get(name, ()))
        of_name = values[..., counted : counted + count]
        found[name] = of_name.reshape((*values.shape[:-1], *(W.shape if at is None else [count])))
        counted += count
    return found
