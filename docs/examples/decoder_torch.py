"""A decoder in PyTorch with three mistakes, and the glue with which the cross-check names them:

python scripts/crosscheck.py --algorithm 10 --of docs.examples.decoder_torch:observe
"""

import math

import torch
from torch import nn

from training.foreign import load, record_torch


class Layer(nn.Module):
    def __init__(self, d, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=0.0), nn.LayerNorm(d, eps=0.0)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)

    def attend(self, x):
        batch, length, d = x.shape
        split = (batch, length, self.heads, d // self.heads)
        q, k, v = (a.view(split).transpose(1, 2) for a in self.qkv(x).split(d, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # mistake: not of a head
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, d))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        return y + self.down(nn.functional.gelu(self.up(y)))  # mistake: the residual is y, not x


class Decoder(nn.Module):
    def __init__(self, vocabulary, longest, d, layers, heads, hidden):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(longest, d)
        self.layers = nn.ModuleList(Layer(d, heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d, eps=0.0), nn.Linear(d, vocabulary, bias=False)

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def loss(self, x):
        return nn.functional.cross_entropy(self(x)[0, :-1], x[0, 1:])  # mistake: the paper sums


TABLE = {  # each parameter, and what of θ it holds; "T:" for a matrix [d_in, d_out]
    "tokens.weight": "T:W_e",
    "positions.weight": "T:W_p",
    "layers.{l}.norm1.weight": "l{l}/gamma_1",
    "layers.{l}.norm1.bias": "l{l}/beta_1",
    "layers.{l}.qkv.weight": "l{l}/W_q l{l}/W_k l{l}/W_v",
    "layers.{l}.qkv.bias": "l{l}/b_q l{l}/b_k l{l}/b_v",
    "layers.{l}.proj.weight": "l{l}/W_o",
    "layers.{l}.proj.bias": "l{l}/b_o",
    "layers.{l}.norm2.weight": "l{l}/gamma_2",
    "layers.{l}.norm2.bias": "l{l}/beta_2",
    "layers.{l}.up.weight": "l{l}/W_mlp1",
    "layers.{l}.up.bias": "l{l}/b_mlp1",
    "layers.{l}.down.weight": "l{l}/W_mlp2",
    "layers.{l}.down.bias": "l{l}/b_mlp2",
    "norm.weight": "gamma",
    "norm.bias": "beta",
    "head.weight": "W_u",
}


def observe(case, dtype):
    """Load the case's θ, run the model on its tokens, and record what PyTorch computes."""
    s = case.sizes
    model = Decoder(s["N_V"], s["l_max"], s["d_e"], s["L"], s["H"], s["d_mlp"]).to(getattr(torch, dtype))
    load(model, TABLE, case.theta, layers=s["L"])
    x = torch.tensor([case.inputs["x"]])
    return record_torch(lambda: (model(x), model.loss(x)), model)
