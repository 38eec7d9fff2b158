"""The models with Gaussian states: name -> a function that makes one; shared by the contract tests."""

from pplseq.models import LDS, TextLDS

# each takes words 0..5 where it has num_words, else vectors of 2 features
GAUSSIAN_MODELS = {
    "lds": lambda: LDS(3, 2),
    "lds, diagonal, stationary": lambda: LDS(
        2, 2, state_noise="diagonal", emission_noise="diagonal", initial="stationary", offsets="emission"
    ),
    "lds, one state": lambda: LDS(1, 2, offsets="none"),
    "text_lds": lambda: TextLDS(6, 2),
    "text_lds, steady": lambda: TextLDS(6, 2, initial="steady"),
}
