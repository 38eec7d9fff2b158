"""Whether a model has learned anything yet: what scikit-learn asks, and what keeps random answers from being taken for real."""

from __future__ import annotations

import copy
from typing import Any, Self, cast

from pplseq import checks
from pplseq.models.base import SequenceModel


class FittedState(SequenceModel):
    """A model that knows whether its parameters are still those that its constructor drew."""

    is_fitted: bool = False

    def drawn(self) -> None:
        """Called by constructors that draw parameters at random: until these change the model has nothing to say."""
        vars(self)["_drawn"] = self._stamps()

    def _stamps(self) -> list[tuple[int, int]]:
        return [(id(parameter), parameter._version) for parameter in self.parameters()]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_drawn": None if self.__sklearn_is_fitted__() else "as drawn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if vars(self).get("_drawn") == "as drawn":  # a copy's parameters are others, and no more fitted
            self.drawn()

    def __sklearn_is_fitted__(self) -> bool:
        own = vars(self)
        if self.is_fitted or own.get("_drawn") is None:
            return True
        if own["_drawn"] == self._stamps():
            return False
        own["_drawn"] = None  # what has changed once does not become what it was
        return True

    def __sklearn_tags__(self):
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_clone__(self) -> Self:
        """A model built alike that has learned nothing; it knows the same words."""
        built: Any = type(self)(**copy.deepcopy(cast(Any, self).get_params()))
        built.vocabulary, built.clusters = self.vocabulary, self.clusters
        return built

    def check_fitted(self) -> None:
        """Raises NotFittedError while the parameters are those that the constructor drew: neither fitted, nor set or loaded."""
        if not self.__sklearn_is_fitted__():
            raise checks.NotFittedError(
                f"this {type(self).__name__} has random parameters: fit it, or give it parameters (set_parameters, "
                "load_state_dict, an optimizer of your own)"
            )
