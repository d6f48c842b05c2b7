"""Which settings are tried: as many for each method, the given ones first, and none that has no effect."""

import pytest

from ray_backfill.learn.methods import Method, all_methods
from ray_backfill.learn.training.fit import Choice, trials_of, with_values
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, LossSettings
from tests.learn.fits import fit_of

SPACE = (Choice("heads.lr", (1e-4, 1e-3)), Choice("heads.loss.tau", (0.1, 0.3, 1.0)))
FITTED = [method for method in all_methods().values() if method.fit and method.fit.space]


def test_the_given_settings_are_tried_first_then_distinct_others() -> None:
    given = FitSettings(heads=HeadTraining(lr=5e-4, loss=LossSettings(tau=0.2)))
    trials = trials_of(SPACE, given, 4)
    assert trials[0] == {"heads.lr": 5e-4, "heads.loss.tau": 0.2}
    assert len({tuple(trial.values()) for trial in trials}) == len(trials) == 4
    assert trials_of(SPACE, given, 6)[:4] == trials, "more trials begin with the same ones"
    assert len(trials_of(SPACE, given, 100)) == 1 + 2 * 3


def test_given_settings_that_are_in_the_space_are_tried_once() -> None:
    trials = trials_of(SPACE, FitSettings(heads=HeadTraining(lr=1e-3)), 100)
    assert len({tuple(trial.values()) for trial in trials}) == len(trials) == 2 * 3


def test_values_are_set_where_their_names_say() -> None:
    given = FitSettings()
    changed = with_values(given, {"heads.loss.tau": 0.7, "adapters.ridge": 3.0})
    assert (changed.heads.loss.tau, changed.adapters.ridge) == (0.7, 3.0)
    assert (
        with_values(changed, {"heads.loss.tau": given.heads.loss.tau, "adapters.ridge": given.adapters.ridge}) == given
    )


@pytest.mark.parametrize("method", FITTED, ids=lambda method: method.name)
def test_every_declared_value_changes_the_fit(method: Method) -> None:
    """A setting that the fit does not depend on would waste the method's trials."""
    fit = fit_of(method.name)
    for choice in fit.space:
        changed = (with_values(FitSettings(), {choice.name: value}) for value in choice.values)
        recorded = [str(fit.recorded(settings, "cosine")) for settings in changed]
        assert len(set(recorded)) == len(choice.values), choice.name


def test_every_method_has_the_same_number_of_trials() -> None:
    trained = {method.name for method in all_methods().values() if method.is_trained}
    assert trained <= {method.name for method in FITTED}, "a training without a space"
    for method in FITTED:
        assert len(trials_of(fit_of(method.name).space, FitSettings(), 8)) == 8, method.name
