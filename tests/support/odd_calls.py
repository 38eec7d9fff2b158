"""Calls of all public verbs of all models with arguments of any type, and whether they answer or refuse as they should."""

import inspect
import random
import traceback
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import torch

from pplseq.checks import NotFittedError
from pplseq.models import Priors
from support.model_cases import BLOCKS, CASES
from support.model_cases import EVERYTHING as CASES_VERBS

VERBS = (
    "aic", "bic", "classify", "components", "constrained", "decode", "diagnostics", "effect_curves", "embed_tokens",
    "entropy", "estimates", "filter", "fit", "fit_transform", "forecast",
    "get_params", "infill", "log_joint", "log_prob", "n_best", "one_step", "open_loop", "posterior", "predict",
    "predict_next", "predict_proba", "reconstruct", "regimes", "sample", "sample_states", "score",
    "set_parameters", "set_params", "smooth", "split", "summary", "token_log_probs", "transform", "type_embeddings",
)  # fmt: skip
REFUSALS = (ValueError, TypeError, NotFittedError, ImportError)  # ImportError: an extra that is not there
SMALL = {"num_steps": 2, "max_iterations": 1, "epochs": 1, "num_restarts": 1}  # of a fit that an odd argument does not end


def odd_values(case):
    """Values of all types that people have, those of the case among them."""
    import pandas

    x = case.data()
    return [
        None, True, False, -1, 0, 1, 2, 1.5, -0.0, float("nan"), float("inf"), 2**70, -(2**70), 1e300, 1j, "x", "", "auto",
        b"x", [], (), {}, set(), [None], [[]], [[], []], [[None]], ["x"], [["x"]], {"a": 1}, {"x": [0, 1]}, [1, "x"],
        [1, [2]], [0, 1], [2**70], [1.5, None], object(), len, range(3), Decimal("1.5"), Path("x"), Ellipsis, slice(2),
        iter([[0, 1]]), int, np.array(3), np.array([]), np.zeros((0, 2)), np.zeros((2, 0)), np.array([None, 1], dtype=object),
        np.array(["a", "b"]), np.array([[1, 2]], dtype="datetime64[D]"), np.array([1 + 1j]),
        np.ma.masked_array([0, 1], [True, False]), np.float32(1), np.int64(1), np.bool_(True), np.uint64(2**63),
        np.array([True, False]), np.zeros((1, 1, 1, 1)), np.full((4, 6), 2**40), torch.tensor(2), torch.tensor(1.5),
        torch.tensor([]), torch.zeros(0, 2), torch.zeros(2, 0), torch.zeros(2, 3).to_sparse(), torch.tensor([1 + 1j]),
        torch.tensor([True, False]), torch.zeros(2, 2, 2, 2), torch.zeros(3, dtype=torch.float16),
        torch.zeros(3, dtype=torch.int8), torch.zeros(2, 3, device="meta"), torch.zeros(4, 6, requires_grad=True),
        torch.full((4,), 6), torch.tensor([6, 1, 4, 6]), torch.tensor([-1, 7, 0, 2]), torch.nn.Linear(2, 2), torch.float32,
        pandas.DataFrame(), pandas.DataFrame({"a": []}), pandas.DataFrame({"a": [1, 2], "b": ["x", None]}), pandas.NaT,
        pandas.NA, pandas.Series([], dtype=float), pandas.Series(["x"]), pandas.Timestamp("2020-01-01"),
        pandas.DataFrame({0: [0.5, 1.0]}), x, x[0], x[:1], x.numpy(), list(x), x.tolist(), x.double(), x.float(),
        x[..., None], x.mT, x[:0], x[:, :0], x.bool(), -x, x.to_sparse(), [x[0], x[1, :2]], x * float("nan"), x.to("meta"),
        Priors(),
    ]  # fmt: skip


def fitting(case, name, x):
    """A value that an argument of this name may have."""
    known = {"x": x, "inputs": case.known.get("inputs"), "lengths": None, "num_steps": 2, "num_samples": 1, "seed": 0}
    return known.get(name)


class OddCalls:
    """Calls, drawn from a seed; each is on a model of its own, whose verbs and constructor are called."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def call(self):
        """None where a call answered or was refused as it should, else what was called and what it raised."""
        draw = self.draw
        name = draw.choice(list(CASES))
        case = CASES[name]
        torch.manual_seed(draw.randrange(1000))
        model = case.model()
        values = odd_values(case)
        refused = CASES_VERBS - case.verbs - case.own  # it says that it has them not
        verbs = [verb for verb in VERBS if hasattr(type(model), verb) and verb not in refused]
        verb = draw.choice([*verbs, *(["fit"] * 2), *(["__init__"] * 3)])
        if verb == "summary" and sum(own.numel() for own in model.parameters()) > 200:
            verb = "score"  # a gradient a parameter would take seconds
        function = type(model) if verb == "__init__" else getattr(model, verb)
        given = self.arguments(model, case, verb, function, values)
        told = f"{name}: {verb}({', '.join(f'{key}={_shown(value)}' for key, value in given.items())})"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(**given)
        except REFUSALS as error:
            return None if str(error) or isinstance(error, ImportError) else f"{told}: an error without a word"
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in place if "/pplseq/" in frame.filename][-1:]
            where = f" at {own[0].filename.rpartition('/pplseq/')[2]}:{own[0].lineno}" if own else ""
            return f"{told}: {type(error).__name__}: {' '.join(str(error).split())[:150]}{where}"
        return None

    def arguments(self, model, case, verb, function, values):
        """Fitting ones, and one or two odd ones among them."""
        draw = self.draw
        if verb == "__init__":
            given = {key: value for key, value in model.config.items() if key in inspect.signature(type(model)).parameters}
            names = list(inspect.signature(type(model)).parameters)
            given |= {"blocks": BLOCKS} if "blocks" in names else {}
        else:
            parameters = inspect.signature(function).parameters
            names = [key for key, value in parameters.items() if value.kind not in (value.VAR_KEYWORD, value.VAR_POSITIONAL)]
            if any(value.kind is value.VAR_KEYWORD for value in parameters.values()):
                names += self.others(model, verb)
            found = {key: fitting(case, key, case.data()) for key in names}
            given = {key: value for key, value in found.items() if value is not None}
            if verb == "fit":
                short = {**SMALL, **case.fit}
                given |= {key: value for key, value in short.items() if key in names and key in (*SMALL, "method")}
                given |= {"num_steps": 1} if given.get("method") in ("sgd", "svi") else {}
                if given.get("method") != "sgd":
                    given.pop("num_steps", None)
        for key in draw.sample(names, min(len(names), draw.choice([1, 1, 1, 2]))):
            given[key] = draw.choice(values)
        return {key: value for key, value in given.items() if key not in ("self", "folder", "path", "cluster")}

    def others(self, model, verb):
        """Names that stand behind `**`."""
        if verb == "set_params":
            return list(model.get_params())
        if verb == "fit":
            return ["max_iterations", "tolerance", "num_steps", "lr", "method", "batch_size"]
        return ["inputs", "states", "start"]


def _shown(value):
    if isinstance(value, (torch.Tensor, np.ndarray)):
        kind = getattr(value, "layout", "")
        return f"<{type(value).__name__} {value.dtype} {tuple(value.shape)} {kind}>"
    return " ".join(repr(value).split())[:60]
