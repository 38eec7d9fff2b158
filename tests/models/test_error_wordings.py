"""What is no data, or names no steps to come, is answered by the argument, what was expected, what came, and what to do."""

from pathlib import Path

import numpy as np
import pytest

from pplseq import ARHMM, HMM, IOHMM, LDS, HMMTagger, SwitchingRegression, TextLDS

Y = np.arange(12.0) % 5
U = np.sin(Y)


@pytest.fixture(scope="module")
def models():
    return {
        "hmm": HMM(1, num_features=1).set_parameters(initial=[1.0]),
        "words": HMM(1, num_words=3).set_parameters(initial=[1.0]),
        "lds": LDS(1, 1).set_parameters(transition=[[0.5]]),
        "driven": LDS(1, 1, num_inputs=1).set_parameters(transition=[[0.5]]),
        "switching": SwitchingRegression(1, order=1).fit(Y),
        "arhmm": ARHMM(1, 1, order=1).fit(Y, max_iterations=2),
        "driven switching": SwitchingRegression(1, order=1, num_inputs=1).fit(Y, inputs=U),
        "driven arhmm": ARHMM(1, 1, order=1, num_inputs=1).fit(Y, inputs=U, max_iterations=2),
        "iohmm": IOHMM(1, num_inputs=0, outputs="gaussian", num_outputs=1).fit(Y, max_iterations=1),
        "fed": IOHMM(1, num_inputs=1, outputs="gaussian", num_outputs=1).fit(Y, inputs=U, max_iterations=1),
    }


@pytest.mark.parametrize("kind", ["hmm", "words", "lds", "switching", "arhmm"])
def test_what_is_no_data(models, kind):
    for call in (models[kind].score, models[kind].fit):
        with pytest.raises(TypeError, match="x must be a list of sequences, .* a tensor or a frame, got None; give the"):
            call(None)
        for path, what in (("returns.csv", "text"), (Path("returns.csv"), "path")):
            with pytest.raises(TypeError, match=f"got the {what} 'returns.csv'; read a file first, a table by pandas.read_csv"):
                call(path)


def test_paths_at_other_doors(models):
    with pytest.raises(TypeError, match="got the text 'returns.csv'; read a file first"):
        models["fed"].score("returns.csv")
    with pytest.raises(TypeError, match="got the text 'text.txt'; .*text by pplseq.load_corpus"):
        TextLDS(2, num_words=20).fit("text.txt")
    with pytest.raises(ValueError, match=r"got the path 'train.conllu'; read it, fit\(pplseq.data.read_tagged\(path\)\)"):
        HMMTagger.enhanced().fit("train.conllu")
    with pytest.raises(TypeError, match="a list of TaggedSentence.*got None"):
        HMMTagger.enhanced().fit(None)
    with pytest.raises(ValueError, match=r"num_states must be in 1..num_words - 1 .*got 50 with 10 words"):
        TextLDS(50, num_words=10)


@pytest.mark.parametrize("kind", ["hmm", "lds", "switching", "arhmm"])
def test_a_forecast_says_how_far(models, kind):
    with pytest.raises(TypeError, match=r"num_steps must be given, .*: forecast\(x, 12\); got None"):
        models[kind].forecast(Y)
    with pytest.raises(TypeError, match="got 12 as the data, and no number"):
        models[kind].forecast(12)
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        models[kind].forecast(Y, 0)


def test_a_forecast_of_an_iohmm_says_how_far(models):
    with pytest.raises(ValueError, match="has no inputs that tell how many steps; say num_steps"):
        models["iohmm"].forecast(Y)
    with pytest.raises(ValueError, match="^future_inputs: must be given, .*: this model has inputs; got None"):
        models["fed"].forecast(Y, inputs=U)


@pytest.mark.parametrize("kind", ["lds", "switching", "arhmm", "iohmm"])
def test_inputs_of_a_model_that_takes_none(models, kind):
    for inputs in (U, U[:, None]):
        with pytest.raises(ValueError, match="^inputs: this model takes none; make it with num_inputs=..., or leave them out"):
            models[kind].score(Y, inputs=inputs)


def test_inputs_of_steps_to_come_are_called_so(models):
    model = models["driven"]
    for future, message in (
        (None, r"^future_inputs must be given, \(B, K, U\) = \(1, 3, 1\): the model has num_inputs=1"),
        (U[:6].reshape(3, 2), r"^future_inputs must have shape \(B, K, U\) = \(1, 3, 1\), got \(1, 3, 2\)"),
        (np.full(3, np.nan), "^future_inputs must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            model.forecast(Y, 3, inputs=U, future_inputs=future)
    one, two = (model.forecast(Y, 3, inputs=U, future_inputs=future).means for future in (U[:3], U[:3, None]))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, model.forecast(Y, 3, inputs=U, future_inputs=U[:3] + 1).means) or not float(
        model.values.emission_inputs.abs().max() + model.values.transition_inputs.abs().max()
    )
    with pytest.raises(ValueError, match="^future_inputs: this model takes none"):
        models["lds"].forecast(Y, 3, future_inputs=U[:3])


@pytest.mark.parametrize("kind", ["driven", "driven switching", "driven arhmm", "fed"])
def test_inputs_of_steps_to_come_tell_how_many(models, kind):
    model, pandas = models[kind], pytest.importorskip("pandas")
    for future in (U[:3], U[:3, None], U[None, :3, None], pandas.Series(U[:3])):
        told, asked = (model.forecast(Y, *steps, inputs=U, future_inputs=future) for steps in ((), (3,)))
        assert told.means.shape[1] == 3
        np.testing.assert_array_equal(told.means, asked.means)
    with pytest.raises(ValueError, match="^future_inputs:? must be of num_steps = 4 steps, got 3"):
        model.forecast(Y, 4, inputs=U, future_inputs=U[:3])
    with pytest.raises(ValueError, match=r"^future_inputs:? must be given, \(B, K, .\), or \(K, .\) for all rows.*got None"):
        model.forecast(Y, inputs=U)
    with pytest.raises(ValueError, match="^future_inputs:? .*must .*got shape|^future_inputs must have .*; got"):
        model.forecast(Y, inputs=U, future_inputs=U[:0])
