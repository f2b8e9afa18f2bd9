"""Bad input: one clear line, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.embedded.conftest import CHAIN, IDS, LLAMA3, chat, choice_of
from tests.helpers.tiny_model import CASES, altered_copy
from tests.runtime.conftest import check_nothing_leaked
from zllm.embedded import Engine
from zllm.errors import BackendError, GenerationError, RequestError, ZllmError


def test_all_requests_are_checked_before_any_starts(llama3: Engine) -> None:
    good = {**IDS, "max_tokens": 1}
    for bad, text in (({"tokens": []}, "empty"), ({**IDS, "tpo_k": 1}, "tpo_k"), (3, "object")):
        with pytest.raises(RequestError, match=rf"requests\[1\].*{text}"):
            llama3.generate_many([good, bad, good])
    check_nothing_leaked(llama3)
    assert llama3.generate_many([]) == []


def test_bad_requests_are_refused_when_a_stream_is_asked_for(llama3: Engine) -> None:
    for make in (llama3.stream, llama3.astream):
        with pytest.raises(RequestError, match="nope"):
            make({**IDS, "nope": 1})
    check_nothing_leaked(llama3)


def test_a_folder_without_tokenizer_takes_token_ids(llama3: Engine) -> None:
    assert choice_of(llama3.generate({**IDS, "max_tokens": 3}))["text"] == ""
    stopping = {"tokens": [1], "stop": ["x"]}
    for request in ({"prompt": "hi"}, chat("hi"), stopping):
        with pytest.raises(ZllmError, match=r"tokenizer\.json") as caught:
            llama3.generate_many([{**IDS, "max_tokens": 1}, request])
        assert "\n" not in str(caught.value)
        check_nothing_leaked(llama3)


def test_the_tokenizer_of_a_larger_model_is_said(tmp_path: Path) -> None:
    """Its text may go beyond the embedding; what the model knows works on."""

    def cut(arrays: dict[str, NDArray[np.float32]]) -> None:
        for name, rows in arrays.items():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                arrays[name] = rows[:120]

    small = altered_copy(CHAIN, tmp_path / "small", tensors=cut, config={"vocab_size": 120})
    with Engine(model=small, backend="oracle") as engine:
        for bad in ("xz", "z"):
            with pytest.raises(ZllmError, match=r"token id 122.*0 to 119"):
                engine.generate({"prompt": bad, "max_tokens": 1})
        assert choice_of(engine.generate({"prompt": "ab", "max_tokens": 4, "logprobs": 3}))
        check_nothing_leaked(engine)


def test_a_damaged_message_is_named(chain: Engine) -> None:
    for messages in ([{}], [{"role": "user"}], ["hi"], [{"role": "no", "content": "x"}]):
        with pytest.raises(RequestError, match=r"messages\[0\]"):
            chain.generate({"messages": messages})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_give_one_line(tmp_path: Path, value: float) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        tensors["model.embed_tokens.weight"][5, 3] = value

    folder = altered_copy(LLAMA3, tmp_path / "m", tensors=damage)
    with Engine(model=folder, backend="oracle") as engine:
        bad, good = {**IDS, "tokens": [1, 5, 2]}, {**IDS, "tokens": [1, 2], "max_tokens": 2}
        for call in (engine.generate, lambda request: list(engine.stream(request))):
            with pytest.raises(GenerationError, match="not finite") as caught:
                call(bad)
            assert "\n" not in str(caught.value)
        before = engine.generate({**good, "max_tokens": 1})
        with pytest.raises(GenerationError):
            engine.generate_many([good, bad, good])
        again = engine.generate({**good, "max_tokens": 1})
        assert choice_of(again)["token_ids"] == choice_of(before)["token_ids"]
        check_nothing_leaked(engine)


@pytest.mark.parametrize("options", [{"lanes": 0}, {"lanes": -1}, {"cache_tokens": 0}])
def test_an_engine_without_room_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ZllmError, match=next(iter(options))):
        Engine(model=LLAMA3, backend="oracle", **options)


def test_unknown_backend_and_resident_form_list_the_known_ones() -> None:
    with pytest.raises(BackendError, match="oracle, webgpu, auto"):
        Engine(model=LLAMA3, backend="cuda")
    with pytest.raises(BackendError, match="f32, packed"):
        Engine(model=LLAMA3, backend="oracle", resident="f16")
    with pytest.raises(ZllmError, match="no file or folder"):
        Engine(model=CASES / "none", backend="oracle")
