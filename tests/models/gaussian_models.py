"""The models with Gaussian states: name -> a function that makes one; shared by the contract tests."""

from pplseq.models import TextLDS

# each takes vectors of 2 features, or words 0..5 where it says so
GAUSSIAN_MODELS = {
    "text_lds": lambda: TextLDS(6, 2),
}
