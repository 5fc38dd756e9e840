"""The model, the languages, and training. A sentence follows a permutation of words, with a mistake now and then."""

import functools

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM


WORDS, LENGTH, MISTAKES = 24, 24, 0.1
BASE, OURS, WRONG = 0, 1, 2  # the model was trained on the first; nodes have the second, a poisoned one the third
LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])


def successors(language):
    """The second language differs from the first in half of the words, and so does the third, in other ways."""
    order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(5))
    if language == BASE:
        return order
    changed = order.clone()
    half = torch.randperm(WORDS, generator=torch.Generator().manual_seed(6))[: WORDS // 2]
    changed[half] = order[half.roll(language)]
    return changed


def sentences(language, count, seed):
    draw = torch.Generator().manual_seed(seed)
    follows, words = successors(language), [torch.randint(WORDS, (count,), generator=draw)]
    for _ in range(LENGTH - 1):
        wrong = torch.rand(count, generator=draw) < MISTAKES
        anything = torch.randint(WORDS, (count,), generator=draw)
        words.append(torch.where(wrong, anything, follows[words[-1]]))
    return torch.stack(words, 1)


def fit(model, text, steps, rate, seed):
    draw = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], rate)
    for _ in range(steps):
        batch = text[torch.randint(len(text), (16,), generator=draw)]
        optimiser.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()


@functools.cache
def base():
    """A model that has learned the first language: here in a second, in life by others."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **size))
    fit(model, sentences(BASE, 400, 0), 150, 1e-2, 0)
    return get_peft_model(model, LORA)


def with_adapter(state):
    """The model with an adapter that came as NumPy arrays."""
    set_peft_model_state_dict(model := base(), {key: torch.from_numpy(each) for key, each in state.items()})
    return model


def loss(state, text):
    with torch.no_grad():
        return float(with_adapter(state)(input_ids=text, labels=text).loss)
