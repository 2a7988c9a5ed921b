"""A model that several devices share is served as that of one device."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests import serving_cases
from tests.run_cases import conversing, make_run
from training.data.chat import converser
from training.mesh.placement import Placement
from training.runs.trained_model import load_run

MESSAGES = [{"role": "user", "content": "the cat"}]
SIZES: dict[str, Any] = {"H": 4, "H_kv": 4, "d_e": 16, "d_mlp": 16}


def answers(run, placement):
    """Texts and log-probabilities: greedy and drawn, in a conversation, streamed, of a prompt read again, and of many
    clients at once, half of whom have their prompts scored.
    """
    model = load_run(run, placement=placement)
    of_run = serving_cases.of_run(model, converse=converser(model.tokenizer))
    with serving_cases.serving(of_run) as port, serving_cases.client_of(port) as client:
        ask = functools.partial(client.completions.create, model="small", max_tokens=8, logprobs=2, temperature=0)
        some = [
            ask(prompt=["the cat", "on"]),
            ask(prompt="the cat sat", n=3, seed=5, temperature=1, top_p=0.9),
            ask(prompt="the cat sat", logit_bias={"70": 5}),
        ]
        with ThreadPoolExecutor(16) as pool:
            prompts = [MESSAGES[0]["content"][:n] for n in (1, 2, 3, 5, 6, 7)]
            generated = [pool.submit(ask, prompt=prompt, max_tokens=24) for prompt in prompts]
            scored = [pool.submit(ask, prompt=prompt, max_tokens=0, echo=True) for prompt in prompts]
        some += [answer.result() for answer in generated + scored]
        talk = functools.partial(client.chat.completions.create, model="small", messages=MESSAGES, max_tokens=8, seed=1)
        spoken = talk(logprobs=True)
        streamed = "".join(part.choices[0].delta.content or "" for part in talk(stream=True) if part.choices)
        choices = [choice for one in some for choice in one.choices]
        texts = [choice.text for choice in choices] + [spoken.choices[0].message.content, streamed]
        numbers = [np.array(choice.logprobs.token_logprobs, float) for choice in choices]
        numbers.append([token.logprob for token in spoken.choices[0].logprobs.content])
        return texts, np.concatenate(numbers)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["LLAMA", "MIXTRAL"])
def test_a_divided_decoder_answers_the_same(variant, tmp_path):
    run = make_run(tmp_path / "run", "d", conversing(), variant=variant, **SIZES)
    texts, numbers = answers(run, None)
    assert texts[-1] == texts[-2]
    for mesh in ("model=8", "data=2,model=4"):
        placement = Placement(mesh)
        mlp = load_run(run, placement=placement).theta.layers.mlp
        divided = getattr(mlp, "experts", mlp).W_mlp1
        assert len({str(shard.index) for shard in divided.addressable_shards}) == 8
        found, theirs = answers(run, placement)
        assert found == texts
        np.testing.assert_allclose(theirs, numbers, atol=1e-5)


@pytest.mark.end_to_end
def test_a_divided_encoder_embeds_the_same(tmp_path):
    run = make_run(tmp_path / "run", "e", H=4, d_e=16, d_mlp=16)
    found = []
    for placement in (None, Placement("data=2,model=4")):
        of_run = serving_cases.of_run(load_run(run, placement=placement))
        with serving_cases.serving(of_run) as port, serving_cases.client_of(port) as client:
            answer = client.embeddings.create(model="small", input=["abc", "a dig", "j"])
            found.append([each.embedding for each in answer.data])
    assert np.linalg.norm(found[0][0]) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
