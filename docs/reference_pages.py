"""Pages that the build makes: one a class, with all its verbs, those it inherits too; and the help of every command.

Each page of a model begins with a program that asks every verb that the class has; the build runs it.
"""

from __future__ import annotations

from collections.abc import Iterator

# group -> class -> where it stands
CLASSES = {
    "Models": {
        "HMM": "models.hmm.program", "SemiMarkovHMM": "models.hmm.durations", "VLHMM": "models.vlhmm.program",
        "LDS": "models.lds.program", "ConstrainedLDS": "models.lds.constrained", "StructuralModel": "models.structural.program",
        "TextLDS": "models.text_lds.program", "IOHMM": "models.iohmm.program", "ARHMM": "models.arhmm.program",
        "SwitchingRegression": "models.switching.program", "AutomatonLearner": "models.automata.learner",
    },
    "Taggers": {
        "HMMTagger": "models.taggers.hmm", "LatentTagger": "models.taggers.latent", "CRFTagger": "models.taggers.conditional",
        "MEMMTagger": "models.taggers.conditional", "DictionaryTagger": "models.taggers.dictionary",
    },
    "Streams": {
        "PROPSLearner": "models.props.learner", "PROPS": "models.props.program", "StreamingHMM": "models.props.program",
        "PersonalStream": "sources.stream",
    },
    "Rivals": {"KneserNey": "baselines.kneser_ney", "LSTM": "baselines.lstm", "AWDLSTM": "baselines.awd_lstm",
               "FeedForward": "baselines.feed_forward", "RNN": "baselines.rnn", "HMMRNN": "baselines.hmm_rnn"},
}  # fmt: skip
SERIES = "x = torch.tensor([[0.1, -0.2, 0.0, 3.9, 4.2, 4.1, 0.3, -0.1], [4.0, 4.2, 3.8, 0.2, 0.1, -0.3, 4.1, 3.9]]).unsqueeze(-1)"
INPUTS = "inputs = torch.tensor([[0.0, 1.0] * 4, [1.0, 0.0] * 4]).unsqueeze(-1)"
WORDS = "x = torch.tensor([[0, 1, 2, 0, 1, 2], [3, 1, 2, 3, 1, 2]])"
GIVEN = ", inputs=inputs"
# class -> (the program's first lines, what its questions take beside x)
BEGIN = {
    "HMM": ([SERIES, "model = HMM(2, num_features=1).fit(x, num_restarts=3, seed=0)"], ""),
    "SemiMarkovHMM": ([SERIES, "model = SemiMarkovHMM(2, num_features=1, max_duration=4).fit(x, seed=0)"], ""),
    "VLHMM": ([WORDS, "model = VLHMM(8, num_words=4, block_of_word=[0, 0, 1, 1], hidden_size=4).fit(x, epochs=20, seed=0)"], ""),
    "LDS": ([SERIES, "model = LDS(2, num_features=1).fit(x, max_iterations=5, seed=0)"], ""),
    "ConstrainedLDS": ([SERIES, 'model = ConstrainedLDS(1, 1, {"transition": [["a"]]}).fit(x, max_iterations=5, seed=0)'], ""),
    "StructuralModel": ([SERIES, 'model = StructuralModel(trend="level").fit(x)'], ""),
    "IOHMM": ([SERIES, INPUTS, 'model = IOHMM(2, num_inputs=1, outputs="gaussian").fit(x, inputs=inputs, seed=0)'], GIVEN),
    "ARHMM": ([SERIES, "model = ARHMM(2, num_features=1).fit(x, seed=0)"], ""),
    "SwitchingRegression": ([SERIES, INPUTS, "model = SwitchingRegression(2, num_inputs=1).fit(x, inputs=inputs, seed=0)"], GIVEN),
    "StreamingHMM": ([WORDS, "model = StreamingHMM(2, num_words=4).fit(x, seed=0)"], ""),
}  # fmt: skip
VERBS = {  # verb -> a question; {} stands for what is given beside x
    "score": "model.score(x{})", "token_log_probs": "model.token_log_probs(x{})[0, -1]", "entropy": "model.entropy(x{})",
    "filter": "model.filter(x{})[0][0, -1]", "smooth": "model.smooth(x{})[0][0, -1]", "decode": "model.decode(x{})[0]",
    "n_best": "model.n_best(x{}, n=2)[1][0]", "sample_states": "model.sample_states(x{}, seed=0)[0]",
    "forecast": "model.forecast(x, 2)[0][0]", "predict_next": "model.predict_next(x)[0]", "sample": "model.sample(2, seed=0)[0][0]",
    "aic": "model.aic(x{})", "bic": "model.bic(x{})",
}  # fmt: skip
