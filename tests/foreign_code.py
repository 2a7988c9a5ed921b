"""Implementations that are checked as if nobody here had written them; each keyword makes one mistake."""

import math

import numpy as np

from tests.interchange_cases import libraries
from training.foreign import load, record_numpy, record_torch

torch, _ = libraries()
nn = torch.nn


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self, d, H, H_kv, d_mlp, wrong):
        super().__init__()
        self.H, self.H_kv, self.wrong = H, H_kv, wrong
        self.ln1, self.ln2 = nn.LayerNorm(d, eps=wrong.get("eps", 0.0)), nn.LayerNorm(d, eps=wrong.get("eps", 0.0))
        self.widths = [d, d * H_kv // H, d * H_kv // H]
        self.qkv, self.proj = nn.Linear(d, sum(self.widths)), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, d_mlp), nn.Linear(d_mlp, d)

    def forward(self, X):
        B, T, d = X.shape
        normed = X if self.wrong.get("post") else self.ln1(X)
        q, k, v = (a.view(B, T, -1, d // self.H).transpose(1, 2) for a in self.qkv(normed).split(self.widths, dim=-1))
        times = self.H // self.H_kv
        k, v = (a.repeat(1, times, 1, 1) if how else a.repeat_interleave(times, 1)
                for a, how in ((k, False), (v, self.wrong.get("values tiled"))))  # fmt: skip
        q, v = (v, q) if self.wrong.get("exchanged") else (q, v)
        k = k.detach() if self.wrong.get("detached") == "K" else k
        S = q @ k.transpose(-1, -2)
        S = S if self.wrong.get("scale") else S / math.sqrt(q.shape[-1])
        permitted = torch.ones(T, T, dtype=torch.bool).tril(self.wrong.get("diagonal", 0))
        S = S.masked_fill(~permitted, -math.inf)
        A = (S.float() if self.wrong.get("mixed") else S).softmax(self.wrong.get("axis", -1)).to(S.dtype)
        A = nn.functional.dropout(A, self.wrong.get("dropout", 0.0))
        if self.wrong.get("detached") == "softmax":
            A = S.exp() / S.exp().sum(-1, keepdim=True).detach()
        Y = (A @ v).transpose(1, 2)
        Y = Y.transpose(1, 2) if self.wrong.get("merge") else Y
        X = (normed if self.wrong.get("residual") else X) + self.proj(Y.reshape(B, T, d))
        X = self.ln1(X) if self.wrong.get("post") else X
        U = self.fc(self.ln2(X))
        approximate = "tanh" if self.wrong.get("tanh") else "none"
        Z = nn.functional.silu(U) if self.wrong.get("silu") else nn.functional.gelu(U, approximate=approximate)
        if self.wrong.get("derivative"):
            other = nn.functional.gelu(U, approximate="tanh")
            Z = Z.detach() + other - other.detach()
        return X + self.out(Z)


class Decoder(nn.Module):
    """Algorithm 10, up to its logits."""

    def __init__(self, s, wrong):
        super().__init__()
        d = s["d_e"]
        self.wte, self.wpe = nn.Embedding(s["N_V"], d), nn.Embedding(s["l_max"], d)
        self.blocks = nn.ModuleList(Block(d, s["H"], s["H_kv"], s["d_mlp"], wrong) for _ in range(s["L"]))
        self.ln, self.head = nn.LayerNorm(d, eps=wrong.get("eps", 0.0)), nn.Linear(d, s["N_V"], bias=False)
        self.wrong = wrong

    def forward(self, x):
        X = self.wte(x) + self.wpe(torch.arange(x.shape[1]) + self.wrong.get("first", 0))
        for block in reversed(self.blocks) if self.wrong.get("reversed") else self.blocks:
            X = block(X)
        X = self.ln(X)
        return X @ self.wte.weight.T if self.wrong.get("tied") else self.head(X)


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


def decoder(**wrong):
    """A glue for a decoder in PyTorch that makes mistakes."""

    def observe(case, dtype):
        model = Decoder(case.sizes, wrong).to(getattr(torch, dtype))
        load(model, TABLE, case.theta, layers=case.sizes["L"])
        x = torch.tensor([case.inputs["x"]])

        def call():
            logits = model(x)
            loss = nn.functional.cross_entropy(logits[0, :-1], x[0, 1:], reduction=wrong.get("reduction", "sum"))
            return logits, loss

        optimizer = wrong.get("optimizer", lambda p: None)(model.parameters())
        recording = record_torch(call, model, optimizer=optimizer)
        recording.gradients = {n: g * wrong.get("times", 1) for n, g in recording.gradients.items()}
        with torch.no_grad():
            load(model, TABLE, case.theta, layers=case.sizes["L"])
            recording.sampled = sample(model, case.sampling, wrong)
            recording.decoded = decode(model, case.inputs["x"], wrong) if "cache" in wrong else None
        return recording

    return observe


def sample(model, said, wrong):
    """Tokens drawn with the case's numbers."""
    x = list(said["x"])
    for draw in said["draws"]:
        logits = model(torch.tensor([x]))[0, -1] / (1 if wrong.get("tau") else said["tau"])
        x.append(int((logits.softmax(-1).cumsum(-1) <= draw).sum()))
    return x[len(said["x"]) :]


def decode(model, x, wrong):
    """Logits of every prefix's last token; as with a cache that is wrong, a token's position may not be counted on."""
    rows = []
    for t in range(len(x)):
        wpe, first = model.wpe.weight.data.clone(), wrong.get("first", 0)
        if wrong["cache"]:
            model.wpe.weight.data[:] = wpe[first]
        rows.append(model(torch.tensor([x[: t + 1]]))[0, -1])
        model.wpe.weight.data[:] = wpe
    return torch.stack(rows).double().numpy()


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
