"""The rival a user would choose: a plain GPT-2 in PyTorch, with SDPA, a padded vocabulary and AdamW in one kernel."""

from collections.abc import Callable, Mapping
from typing import Any

from training.benchmarks.timing import pytorch, pytorch_device

MULTIPLE = 128  # of the rows of the unembedding, as `vocabulary_multiple` of train.py


def steps(sizes: Mapping[str, int], B: int, dtype: str, *, compiled: bool) -> Callable[[], object] | None:
    """Return a call that trains for a step on B rows of l_max tokens, computed in `dtype`, by torch.compile if
    `compiled`; None without PyTorch.
    """
    torch: Any = pytorch()
    if torch is None:
        return None
    device, l = pytorch_device(), sizes["l_max"]
    model = _model(torch, sizes).to(device)
    loss_of = torch.compile(model) if compiled else model
    fused = {"betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, **fused)
    x = torch.randint(0, sizes["N_V"], (B, l + 1), device=device)
    inputs, targets = x[:, :-1].contiguous(), x[:, 1:].contiguous()
    narrow = {"dtype": getattr(torch, dtype), "enabled": dtype != "float32"}

    def call() -> object:
        with torch.autocast(device, **narrow):
            loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return call


def _model(torch: Any, sizes: Mapping[str, int]) -> Any:
    """Return the module (tokens, next tokens) → loss, with GPT-2's initial parameters."""
    nn, functional = torch.nn, torch.nn.functional
    d, H, N = sizes["d_e"], sizes["H"], -(-sizes["N_V"] // MULTIPLE) * MULTIPLE

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, sizes["d_mlp"]), nn.Linear(sizes["d_mlp"], d)

        def forward(self, h: Any) -> Any:
            q, k, v = self.qkv(self.norm1(h)).unflatten(-1, (3, H, d // H)).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.out(attended.transpose(1, 2).flatten(2))
            return h + self.down(functional.gelu(self.up(self.norm2(h)), approximate="tanh"))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(N, d), nn.Embedding(sizes["l_max"], d)
            self.layers, self.norm = nn.ModuleList(Layer() for _ in range(sizes["L"])), nn.LayerNorm(d)
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)

        def forward(self, x: Any, targets: Any) -> Any:
            h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            for layer in self.layers:
                h = layer(h)
            logits = functional.linear(self.norm(h), self.tokens.weight)
            return functional.cross_entropy(logits.view(-1, N), targets.view(-1))

    return Decoder()
