"""Settings: what a dataclass says of its options, values from three doors, and TOML there and back."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from pplseq import checks
from pplseq.baselines import AWDLSTM, HMMRNN, LSTM, RNN, FeedForward
from pplseq.models import LDS, VLHMM
from pplseq.models.texts import make_batches
from pplseq.models.vlhmm.fit import fit
from pplseq.recipes.recipe import RECIPES
from pplseq.recipes.settings import (
    Duration,
    bounds,
    fill,
    options_of,
    read_sealed_toml,
    read_toml,
    seal_toml,
    setting,
    to_toml,
)
from pplseq.runs.settings import TrainSettings


@dataclass(kw_only=True)
class Run:
    """The run.

    Args:
        seed: of the draws.
        max_time: stop after this long.
    """

    seed: int = 0
    max_time: Duration | None = setting(None, free=True)


@dataclass(kw_only=True)
class Model(Run):
    """The model.

    Args:
        states, layers: how many, a whole number
            of at least 1.
        kind: which.
        hidden: sizes of layers.

    Example:
        none: this is no setting.
    """

    states: int = setting(3, check=checks.count)
    layers: int = setting(1, check=checks.count)
    kind: Literal["wide", "deep"] = "wide"
    hidden: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    rate: float | None = 0.5
    out: Path | None = None
    tied: bool = setting(True, flag="--tied/--untied")
    seed: int = 7


def test_what_is_said_once_is_found():
    options = options_of(Model)
    assert list(options)[:4] == ["states", "layers", "kind", "hidden"] and list(options)[-2:] == ["seed", "max_time"]
    assert options["states"].help == options["layers"].help == "How many, a whole number of at least 1."
    assert (options["seed"].group, options["seed"].default, options["seed"].help) == ("The run", 7, "Of the draws.")
    assert options["states"].group == "The model" and options["kind"].choices == ("wide", "deep")
    assert options["max_time"].free and options["max_time"].duration and not options["seed"].free
    assert options["out"].kind is Path and options["hidden"].many and options["rate"].optional


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"states": 5}, 5), ({"rate": 1}, 1.0), ({"rate": "none"}, None), ({"rate": None}, None),
        ({"hidden": "16, 8"}, (16, 8)), ({"hidden": [16, 8]}, (16, 8)), ({"hidden": 4}, (4,)), ({"names": ""}, ()),
        ({"max_time": "2m"}, 120.0), ({"max_time": "1.5"}, 1.5), ({"max_time": 3}, 3.0), ({"max-time": "1d"}, 86400.0),
        ({"out": "a/b"}, Path("a/b")), ({"tied": False}, False), ({"kind": "deep"}, "deep"),
    ],
)  # fmt: skip
def test_values(given, found):
    name = next(iter(given)).replace("-", "_")
    value = getattr(fill(Model, given), name)
    assert value == found and type(value) is type(found)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"staets": 1}, ValueError, "unknown setting 'staets'. Did you mean 'states'?"),
        ({"states": 0}, ValueError, "states must be at least 1, got 0"),
        ({"states": 1.5}, TypeError, "states must be a whole number, got 1.5"),
        ({"states": True}, TypeError, "states must be a whole number, got True"),
        ({"states": None}, TypeError, "states must be a whole number, got None"),
        ({"kind": "dep"}, ValueError, "kind must be one of wide, deep, got 'dep'. Did you mean 'deep'?"),
        ({"hidden": "16,x"}, TypeError, "hidden must be a whole number, got 'x'"),
        ({"max_time": "soon"}, ValueError, "max_time must be positive seconds, or like 90s, 10m, 2h; got 'soon'"),
        ({"max_time": "-1s"}, ValueError, "must be positive seconds"),
        ({"max_time": "nan"}, ValueError, "must be positive seconds"),
        ({"rate": "0.5"}, TypeError, "rate must be a number or none, got '0.5'"),
        ({"tied": 1}, TypeError, "tied must be true or false, got 1"),
    ],
)
def test_what_is_refused(given, error, message):
    with pytest.raises(error) as caught:
        fill(Model, given)
    assert message in str(caught.value)


def test_the_command_line_converts_what_toml_must_not():
    options = options_of(Model)
    assert options["states"].read_text("5") == 5 and options["rate"].read_text("none") is None
    assert options["hidden"].read_text("2,3") == (2, 3) and options["max_time"].read_text("10s") == 10
    with pytest.raises(TypeError, match="states must be a whole number, got 'many'"):
        options["states"].read_text("many")


def test_toml_there_and_back(tmp_path):
    chosen = fill(
        Model, {"states": 9, "hidden": (2, 3), "names": ['a "b"', "é\n"], "rate": None, "out": "x", "max_time": "2h"}
    )
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(chosen), encoding="utf-8")
    assert fill(Model, read_toml(path)) == chosen
    path.write_text("states 9")
    with pytest.raises(ValueError, match="is not TOML"):
        read_toml(path)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_setting_of_a_recipe_says_what_it_is(name, tmp_path):
    recipe = RECIPES[name]
    for kind in (recipe.settings, recipe.evaluation, recipe.asking, recipe.reporting):
        options = options_of(kind)
        assert all(option.help.endswith((".", ")")) for option in options.values()), kind
        assert {"device", "threads"} <= set(options)
        chosen = fill(kind, {})
        (tmp_path / "settings.toml").write_text(to_toml(chosen), encoding="utf-8")
        assert fill(kind, read_toml(tmp_path / "settings.toml")) == chosen
    assert {"seed", "max_time"} <= set(options_of(recipe.settings))
    special = {read for question in recipe.questions.values() for read in question.reads}
    assert special <= set(options_of(recipe.asking))


@pytest.mark.parametrize(
    ("name", "model", "elsewhere"),
    [
        ("vlhmm", VLHMM, {"num_words", "blocks", "states_per_block", "reset_id"}),  # of the text and its clusters
        ("lstm", LSTM, {"vocabulary"}), ("awd-lstm", AWDLSTM, {"vocabulary"}), ("ff", FeedForward, {"vocabulary"}),
        ("rnn", RNN, {"vocabulary", "init_scale"}),
        ("hmm-rnn", HMMRNN, {"vocabulary"}),
    ],
)  # fmt: skip
def test_settings_bear_the_names_of_the_arguments_that_they_fill(name, model, elsewhere):
    arguments = set(inspect.signature(model).parameters) - elsewhere
    assert arguments <= set(options_of(RECIPES[name].settings))


@pytest.mark.parametrize(
    ("name", "fillable", "other"),
    [
        # what the command's measured recipe has else, and what the fit finds from the text
        ("vlhmm", (VLHMM, fit, TrainSettings), {"num_words", "state_dropout", "num_blocks", "protocol", "seed", "device"}),
        ("hmm", (TrainSettings, make_batches), set()), ("lstm", (LSTM, make_batches), set()),
        ("lds", (LDS,), set()), ("awd-lstm", (AWDLSTM,), set()), ("ff", (FeedForward,), set()), ("hmm-rnn", (HMMRNN,), set()),
    ],
)  # fmt: skip
def test_settings_have_the_defaults_of_the_arguments_that_they_fill(name, fillable, other):
    options = options_of(RECIPES[name].settings)
    for each in fillable:
        for argument, parameter in inspect.signature(each).parameters.items():
            both = argument in options and parameter.default is not parameter.empty
            if both and argument not in other | ({"blocks"} if each is VLHMM else set()):
                assert options[argument].default == parameter.default or argument == "lr" and each is TrainSettings, argument


def test_one_name_for_a_thing():
    words = {option for recipe in RECIPES.values() for option in options_of(recipe.settings) if recipe.name != "tagger"}
    words |= set(options_of(RECIPES["tagger"].settings)) - {"states"}  # no number there, but the run whose states are features
    assert not words & {"states", "restarts", "layers", "iterations", "num_iterations", "learning_rate", "num_units", "init"}
    assert {"num_states", "num_restarts", "num_layers", "max_iterations", "lr", "hidden_size", "initialization"} <= words


@pytest.mark.parametrize("text", ["\x7f", "\x00\x1b\x85\u2028", "a\r\nb", "\\\"'", "\U0001f600", "none "])
def test_any_text_there_and_back(text, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(seal_toml(to_toml(Model(names=(text, text)), data=text)), encoding="utf-8", newline="")
    found = read_sealed_toml(path)
    assert found.pop("data") == text and fill(Model, found) == Model(names=(text, text))


@pytest.mark.parametrize("value", [float("inf"), 1e-320, -0.0, 1e308, 7])
def test_any_number_there_and_back(value, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(fill(Model, {"rate": value})))
    assert fill(Model, read_toml(path)).rate == value


@pytest.mark.parametrize("value", [float("nan"), 10**400, "nan"])
def test_what_is_no_number_of_a_setting(value):
    with pytest.raises((ValueError, TypeError), match="rate must be a number"):
        fill(Model, {"rate": value})


def test_bounds():
    assert bounds("20", "length") == 20 and bounds("5-5", "length") == (5, 5) and bounds((0, 3), "length") == (0, 3)
    empty = "length must go from a smaller number to a larger one, like 2-5, got '5-2'"
    for wrong, message in (("5-2", empty), ("5-", "or two like 12-20")):
        with pytest.raises(ValueError, match=message):
            bounds(wrong, "length")


def test_whole_numbers_where_text_is_taken():
    assert fill(RECIPES["iohmm"].settings, {"num_states": 2, "outputs": "ret"}).num_states == "2"
    for wrong in (True, 2.5):
        with pytest.raises(TypeError, match="num_states must be a string or none, got"):
            fill(RECIPES["iohmm"].settings, {"num_states": wrong})
