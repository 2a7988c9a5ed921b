"""Implementations that are checked as if nobody here had written them; each keyword makes one mistake."""

import math

import numpy as np

from tests.interchange_cases import libraries
from training.foreign import load, record_numpy, record_torch, record_torch_parts

torch, _ = libraries()
nn = torch.nn


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self, d, H, H_kv, d_mlp, wrong):
        super().__init__()
        self.H, self.H_kv, self.wrong = wrong.get("H", H), H_kv, wrong
        self.ln1, self.ln2 = nn.LayerNorm(d, eps=wrong.get("eps", 0.0)), nn.LayerNorm(d, eps=wrong.get("eps", 0.0))
        self.widths = [d, d * H_kv // H, d * H_kv // H]
        self.qkv, self.proj = nn.Linear(d, sum(self.widths)), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, d_mlp), nn.Linear(d_mlp, d)

    def forward(self, X):
        B, T, d = X.shape
        normed = X if self.wrong.get("post") else self.ln1(X)
        projections = (
            self.qkv(normed).split(self.widths, dim=-1)
            if "unnormalized" not in self.wrong
            else [
                nn.functional.linear(X if n in self.wrong["unnormalized"] else normed, W, b)
                for n, W, b in zip(
                    "qkv", self.qkv.weight.split(self.widths), self.qkv.bias.split(self.widths), strict=True
                )
            ]
        )
        q, k, v = (a.view(B, T, -1, d // self.H).transpose(1, 2) for a in projections)
        times = q.shape[1] // k.shape[1]
        k, v = (a.repeat(1, times, 1, 1) if how else a.repeat_interleave(times, 1)
                for a, how in ((k, False), (v, self.wrong.get("values tiled"))))  # fmt: skip
        q, v = (v, q) if self.wrong.get("exchanged") else (q, v)
        q, k, v = (self.wrong.get(n, lambda a: a)(a) for n, a in zip("qkv", (q, k, v), strict=True))
        k = k.detach() if self.wrong.get("detached") == "K" else k
        S = q @ k.transpose(-1, -2)
        S = S if self.wrong.get("scale") else S / self.wrong.get("divisor", math.sqrt)(q.shape[-1])
        permitted = torch.ones(T, T, dtype=torch.bool).tril(self.wrong.get("diagonal", 0))
        permitted = permitted.triu(1 - self.wrong.get("window", T))
        S = S.masked_fill(~permitted, self.wrong.get("fill", -math.inf))
        A = (S.float() if self.wrong.get("mixed") else S).softmax(self.wrong.get("axis", -1)).to(S.dtype)
        A = self.wrong.get("weights", lambda A: A)(A)
        if self.wrong.get("detached") == "softmax":
            A = S.exp() / S.exp().sum(-1, keepdim=True).detach()
        Y = (A @ v).transpose(1, 2)
        Y = Y.transpose(1, 2) if self.wrong.get("merge") else Y
        before, X = X, (normed if self.wrong.get("residual") else X) + self.proj(Y.reshape(B, T, d))
        X = self.ln1(X) if self.wrong.get("post") else X
        U = self.fc(self.ln2(before if self.wrong.get("side by side") else X))
        approximate = "tanh" if self.wrong.get("tanh") else "none"
        Z = nn.functional.silu(U) if self.wrong.get("silu") else nn.functional.gelu(U, approximate=approximate)
        if self.wrong.get("derivative"):
            other = nn.functional.gelu(U, approximate="tanh")
            Z = Z.detach() + other - other.detach()
        if "hook" in self.wrong and Z.requires_grad:
            Z.register_hook(self.wrong["hook"])
        return self.wrong.get("behind", lambda X: X)(X + self.out(Z))


class Decoder(nn.Module):
    """Algorithm 10, up to its logits."""

    def __init__(self, s, wrong):
        super().__init__()
        d = s["d_e"]
        self.wte, self.wpe = nn.Embedding(s["N_V"], d), nn.Embedding(s["l_max"], d)
        self.blocks = nn.ModuleList(Block(d, s["H"], s["H_kv"], s["d_mlp"], wrong) for _ in range(s["L"]))
        self.ln, self.head = nn.LayerNorm(d, eps=wrong.get("eps", 0.0)), nn.Linear(d, s["N_V"], bias=False)
        self.wrong = wrong
        if "second head" in wrong:
            self.norms = nn.ModuleList(nn.LayerNorm(d, eps=0.0) for _ in "exh")
            self.both, self.block = nn.Linear(2 * d, d, bias=False), Block(d, s["H"], s["H_kv"], s["d_mlp"], {})
            self.copies = nn.ModuleList([nn.Embedding(s["N_V"], d), nn.Linear(d, s["N_V"], bias=False)])

    def second(self, x, X, before):
        """Logits of the token after the next, of the hidden states X and those before the last norm."""
        wrong, norms, shift = self.wrong, self.wrong.get("norms"), self.wrong.get("shift", 1)
        (norm_e, norm_x, norm), (W_e, head) = self.norms, self.copies if wrong.get("copies") else (self.wte, self.head)
        norm_e, norm_x = (norm_x, norm_e) if norms == "exchanged" else (norm_e, norm_x)
        y = x.roll(-shift, 1) if wrong.get("rolled") else x[:, shift : len(x[0]) - (shift == 0)]
        X = (before if wrong.get("before") else X)[:, : y.shape[1]]
        X = X.detach() if wrong.get("detached") == "X" else X
        e = W_e(y) + self.wpe(torch.arange(y.shape[1]))
        pair = [e if norms == "X" else norm_e(e), X if norms == "e" else norm_x(X)]
        Y = self.block(self.both(torch.cat(pair[:: -1 if wrong.get("order") else 1], -1)))
        Y = self.ln(Y) if norms == "last" else norm(Y)
        return Y @ self.wte.weight.T if wrong.get("tied") == "second" else head(Y)

    def forward(self, x):
        X = self.wte(x) + self.wpe(torch.arange(x.shape[1]) + self.wrong.get("first", 0))
        X = X * self.wrong.get("embedded", 1)
        blocks = self.blocks[: len(self.blocks) - self.wrong.get("fewer", 0)]
        for block in reversed(blocks) if self.wrong.get("reversed") else blocks:
            X = block(X)
        before, X = X, self.ln(X)
        self.later = self.second(x, X, before) if "second head" in self.wrong else None
        return X @ self.wte.weight.T if self.wrong.get("tied") is True else self.head(X)


TABLE = {
    "wte.weight": "T:W_e",
    "wpe.weight": "T:W_p",
    **{f"blocks.{{l}}.ln{i}.{a}": f"l{{l}}/{b}_{i}"
       for i in (1, 2) for a, b in (("weight", "gamma"), ("bias", "beta"))},
    "blocks.{l}.qkv.weight": "l{l}/W_q l{l}/W_k l{l}/W_v",
    "blocks.{l}.qkv.bias": "l{l}/b_q l{l}/b_k l{l}/b_v",
    **{f"blocks.{{l}}.{a}.{b}": f"l{{l}}/{c}_{n}" for a, n in (("proj", "o"), ("fc", "mlp1"), ("out", "mlp2"))
       for b, c in (("weight", "W"), ("bias", "b"))},
    "ln.weight": "gamma",
    "ln.bias": "beta",
    "head.weight": "W_u",
}  # fmt: skip
SECOND = {n.replace("blocks.{l}", "block"): of.replace("l{l}", "mtp1") for n, of in TABLE.items() if "{l}" in n}
SECOND |= {f"norms.{i}.{a}": f"mtp/{b}{of}" for i, of in enumerate(("_e", "_x", ""))
           for a, b in (("weight", "gamma"), ("bias", "beta"))}  # fmt: skip
SECOND |= {"both.weight": "mtp/W_m", "copies.0.weight": "T:W_e", "copies.1.weight": "W_u"}


def decoder(**wrong):
    """A glue for a decoder in PyTorch that makes mistakes."""

    def observe(case, dtype):
        model = Decoder(case.sizes, wrong).to(getattr(torch, dtype))
        table = TABLE | (SECOND if "second head" in wrong else {})
        table = {name: of for name, of in table.items() if name != wrong.get("not loaded")}
        load(model, table, case.theta, layers=case.sizes["L"])
        x = torch.tensor([wrong.get("tokens", case.inputs["x"])])

        def call():
            logits = model(x)
            if "loss" in wrong:
                return logits, wrong["loss"](logits, x)
            how = {"reduction": wrong.get("reduction", "sum")}
            loss = nn.functional.cross_entropy(logits[0, :-1], x[0, 1:], **how)
            if model.later is not None:
                n = wrong.get("labels", 2)
                later = nn.functional.cross_entropy(model.later[0, : len(x[0]) - n], x[0, n:], **how)
                return (logits, model.later), loss + wrong["second head"] * later
            return logits, loss

        optimizer = wrong.get("optimizer", lambda p: None)(model.parameters())
        recording = record_torch(call, model, optimizer=optimizer)
        recording.gradients = {n: g * wrong.get("times", 1) for n, g in recording.gradients.items()}
        with torch.no_grad():
            load(model, table, case.theta, layers=case.sizes["L"])
            recording.sampled = sample(model, case.sampling, wrong)
        return recording

    return observe


class Translator(nn.Module):
    """Algorithm 8 by PyTorch's own layers, up to its logits."""

    def __init__(self, s, wrong):
        super().__init__()
        d, L = s["d_e"], s["L_enc"]
        self.wte, self.wpe = nn.Embedding(s["N_V"], d), nn.Embedding(s["l_max"], d)
        sizes, options = (d, s["H"], s["d_mlp"]), {"dropout": 0.0, "layer_norm_eps": 0.0, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(*sizes, **options) for _ in range(L))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(*sizes, **options) for _ in range(L))
        self.head, self.wrong = nn.Linear(d, s["N_V"], bias=False), wrong

    def forward(self, z, x):
        Z = self.wte(z) + self.wpe(torch.arange(z.shape[1]) + self.wrong.get("first", 0))
        X = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        fill = self.wrong.get("fill", -math.inf)
        causal = [torch.full((l, l), fill, dtype=X.dtype).triu(1) for l in (z.shape[1], x.shape[1])]
        for layer in self.encoder[: 1 if self.wrong.get("fewer") else None]:
            Z = layer(Z, causal[0] if self.wrong.get("causal") else None)
        for layer in self.decoder:
            X = layer(X, Z, causal[1])
        return self.head(X)


def translator(**wrong):
    """A glue for an encoder-decoder in PyTorch that makes mistakes."""
    parts = {"enc": ("encoder", [("self_attn", "")], "12", "12"),
             "dec": ("decoder", [("self_attn", ""), ("multihead_attn", "e_d/")], "345", "34")}  # fmt: skip
    table = {"wte.weight": "T:W_e", "wpe.weight": "T:W_p", "head.weight": "W_u"}
    for short, (name, attentions, norms, products) in parts.items():
        at, of = f"{name}.{{l}}", f"{short}{{l}}"
        for a, b in (("weight", "W"), ("bias", "b")):
            table |= {f"{at}.{n}.in_proj_{a}": " ".join(f"{of}/{p}{b}_{i}" for i in "qkv") for n, p in attentions}
            table |= {f"{at}.{n}.out_proj.{a}": f"{of}/{p}{b}_o" for n, p in attentions}
            table |= {f"{at}.linear{i}.{a}": f"{of}/{b}_mlp{n}" for i, n in enumerate(products, 1)}
        for a, b in (("weight", "gamma"), ("bias", "beta")):
            table |= {f"{at}.norm{i}.{a}": f"{of}/{b}_{n}" for i, n in enumerate(norms, 1)}

    def observe(case, dtype):
        model = Translator(case.sizes, wrong).to(getattr(torch, dtype))
        load(model, table, case.theta, layers=case.sizes["L_enc"])
        z, x = (torch.tensor([case.inputs[name]]) for name in "zx")
        return record_torch(lambda: model(z, x), model)

    return observe


def sample(model, said, wrong):
    """Tokens drawn with the case's numbers."""
    x = list(said["x"])
    for draw in said["draws"]:
        logits = model(torch.tensor([x]))[0, -1] / (1 if wrong.get("tau") else said["tau"])
        x.append(int((logits.softmax(-1).cumsum(-1) <= draw).sum()))
    return x[len(said["x"]) :]


def softmax(S, M, axis=0):
    """Softmax of the scores S where the mask M permits."""
    E = np.exp(np.where(M, S, -1e30) - np.where(M, S, -1e30).max(axis=0)) * M
    total = E.sum(axis=axis, keepdims=True)
    return E / np.where(total == 0, 1, total)


def attention(case, dtype, mask=lambda M: M, weights=softmax):
    """Algorithm 5 in NumPy, tokens in columns."""

    def run(theta, X, Z, Mask):
        heads = []
        for h in range(len(theta["W_q"])):
            Q, K, V = (theta[f"W_{n}"][h] @ A + theta[f"b_{n}"][h][:, None] for n, A in (("q", X), ("k", Z), ("v", Z)))
            heads.append(V @ weights(K.T @ Q / np.sqrt(len(Q)), mask(Mask)))
        return theta["W_o"] @ np.concatenate(heads) + theta["b_o"][:, None]

    theta = {name: W.astype(dtype) for name, W in case.theta.items()}
    return record_numpy(run, theta, case.inputs["X"].astype(dtype), case.inputs["Z"].astype(dtype), case.inputs["Mask"])


class Norm(nn.Module):
    """RMSnorm of the features, or of another axis."""

    def __init__(self, d, eps, wrong):
        super().__init__()
        self.weight, self.eps, self.wrong = nn.Parameter(torch.ones(d)), wrong.get("eps", eps), wrong

    def forward(self, x, axis=-1):
        if "cast" in self.wrong:  # γ before or after the cast back from float32
            n = x.float() * torch.rsqrt(x.float().square().mean(axis, keepdim=True) + self.eps)
            return (n * self.weight.float()).to(x) if self.wrong["cast"] == "before" else n.to(x) * self.weight
        v = x.square().sum(axis, keepdim=True) if self.wrong.get("sums") else x.square().mean(axis, keepdim=True)
        inverse = self.wrong.get("inverse", lambda v, eps: torch.rsqrt(v + eps))(v, self.eps)
        return x * inverse * (self.weight + self.wrong.get("offset", 0))


class Modern(nn.Module):
    """Llama's lines, or Qwen 3's, with norms of queries and keys."""

    def __init__(self, case, wrong):
        super().__init__()
        s, eps = case.sizes, case.epsilon
        e, d, self.H, self.H_kv = s["d_e"], s["d_attn"], s["H"], s["H_kv"]
        self.base, self.wrong, self.d, self.kept = wrong.get("base", case.rotary_base), wrong, d, None
        self.given, self.documents = (case.inputs.get(name) for name in ("positions", "documents"))
        shapes = {"q": (e, self.H * d), "k": (e, self.H_kv * d), "v": (e, self.H_kv * d), "o": (self.H * d, e),
                  "gate": (e, s["d_mlp"]), "up": (e, s["d_mlp"]), "down": (s["d_mlp"], e)}  # fmt: skip
        norms = {"n1": e, "n2": e} | ({"nq": d, "nk": d} if case.variant == "QWEN3" else {})

        def layer():
            parts = {n: nn.Linear(*shape, bias=False) for n, shape in shapes.items()}
            return nn.ModuleDict({**parts, **{n: Norm(size, eps, wrong) for n, size in norms.items()}})

        self.wte, self.layers = nn.Embedding(s["N_V"], e), nn.ModuleList(layer() for _ in range(s["L"]))
        self.ln, self.head = Norm(e, eps, wrong), nn.Linear(e, s["N_V"], bias=False)

    def turned(self, x, first=0):
        t = torch.tensor(self.given or range(first, first + x.shape[-2]), dtype=x.dtype)
        angle = t[:, None] * self.base ** (-torch.arange(0, self.d, 2, dtype=x.dtype) / self.d)
        cos, sin = angle.cos(), angle.sin()
        if self.wrong.get("tables"):  # made in float32, before the code that is recorded
            cos, sin = (torch.from_numpy(of(angle.numpy()).astype("f4").astype("f8")) for of in (np.cos, np.sin))
        is_next = bool(self.wrong.get("neighbors"))
        cos, sin = (  # of each row
            of.repeat_interleave(2, -1) if is_next != bool(self.wrong.get("other pairs")) else of.repeat(1, 2)
            for of in (cos, sin)
        )
        if is_next:
            return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def attend(self, of, x, start, cache):
        n, wrong = x.shape[1], self.wrong
        q, k, v = (of[name](x).view(1, n, -1, self.d).transpose(1, 2) for name in "qkv")
        if wrong.get("per head"):
            rows = x @ torch.cat([of[name].weight for name in "qkv"]).T
            q, k, v = (a.transpose(1, 2) for a in rows.view(1, n, self.H, 3, self.d).unbind(3))
        if "nq" in of:
            q = of["nq"](q, wrong.get("over", -1))
            keys = of["nq" if wrong.get("γ of queries") else "nk"]
            k = k if wrong.get("keys as they are") else keys(k, wrong.get("keys over", -1))
        first = 0 if wrong.get("position of the part") else start
        q, k = self.turned(q, first), self.turned(k, first + wrong.get("first key", 0))
        v = self.turned(v, first) if wrong.get("values rotated") else v
        own, (k, v) = (k, v), (wrong.get("layer before") and self.kept) or (k, v)
        self.kept = own
        if cache is not None:
            k, v = cache[id(of)] = (
                [torch.cat(pair, 2) for pair in zip(cache[id(of)], (k, v), strict=True)] if start else [k, v]
            )
        times = self.H // self.H_kv
        k, v = (a.repeat(1, times, 1, 1) if wrong.get("tiled") else a.repeat_interleave(times, 1) for a in (k, v))
        if "times" in wrong:
            return of["o"](nn.functional.scaled_dot_product_attention(wrong["times"] * q, k, v, is_causal=True)
                           .transpose(1, 2).reshape(1, n, -1))  # fmt: skip
        forbidden = torch.ones(n, start + n).triu(start + (not wrong.get("strict"))).bool()
        if self.documents and not wrong.get("one document"):
            of_tokens = torch.tensor(self.documents)
            forbidden |= of_tokens[:, None] != of_tokens
        S = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        S = S + wrong["add"] * forbidden if "add" in wrong else S.masked_fill(forbidden, wrong.get("fill", -math.inf))
        A = S.softmax(-1)
        A = A.masked_fill(forbidden, 0.0) if wrong.get("zeroed") else A
        return of["o"]((A @ v).transpose(1, 2).reshape(1, n, -1))

    def forward(self, x, start=0, cache=None):
        X, self.kept = self.wte(x) * self.wrong.get("embedding", 1), None
        X = X * torch.rsqrt(X.square().mean(-1, keepdim=True) + 1e-6) if self.wrong.get("embedding normed") else X
        for of in self.layers:
            before, X = X, X + self.attend(of, of["n1"](X), start, cache)
            Y = of["n2"](X)
            X = before if self.wrong.get("residual") else X
            X = X + of["down"](nn.functional.silu(of["gate"](Y)) * of["up"](Y))
        normed = self.ln(X)
        read = (X if self.wrong.get("norm unused") else normed)[:, self.wrong.get("from", 0) :]
        Y = read @ self.wte.weight.T if self.wrong.get("tied") else self.head(read)
        return self.wrong.get("logits", lambda Y: Y)(Y)


MODERN = {"wte.weight": "T:W_e", "ln.weight": "gamma", "head.weight": "W_u"}
MODERN |= {f"layers.{{l}}.{a}.weight": f"l{{l}}/{b}" for a, b in (
    ("q", "W_q"), ("k", "W_k"), ("v", "W_v"), ("o", "W_o"), ("gate", "W_gate"), ("up", "W_mlp1"), ("down", "W_mlp2"),
    ("n1", "gamma_1"), ("n2", "gamma_2"))}  # fmt: skip


def modern(**wrong):
    """A glue for a decoder of the variants LLAMA and QWEN3 that makes mistakes."""

    def observe(case, dtype):
        model = Modern(case, wrong).to(getattr(torch, dtype))
        more = {f"layers.{{l}}.n{n}.weight": f"l{{l}}/gamma_{n}" for n in "qk"} if case.variant == "QWEN3" else {}
        load(model, MODERN | more, case.theta, layers=case.sizes["L"])
        x, parts, cache = torch.tensor([case.inputs["x"]]), wrong.get("parts"), {}
        if parts:
            return record_torch_parts(lambda start, stop: model(x[:, start:stop], start, cache), parts, model)
        loss = wrong.get("loss", lambda _, x: None)
        return record_torch(lambda: ((Y := model(x)), loss(Y[0, :-1], x[0, 1:])), model)

    return observe
