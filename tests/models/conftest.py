"""What tests of models share."""

from support.random_models import ask_fitted_models_only, random_parameters_will_do  # noqa: F401
