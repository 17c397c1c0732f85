# SPDX-License-Identifier: Apache-2.0
"""The forms of the LLTM that are measured beside the one that ships."""

import pytest
import torch

from nerfkit.errors import UserError
from scripts import bench_train, lltm_forms
from scripts.lltm_forms import CASES, Form, FormRenderer, mirrored
from tests.naming import raises_naming
from tests.trainers import make_trainer


def changed(config, changes: str):
    options = bench_train.BenchOptions(**{name: getattr(config, name) for name in config.__dataclass_fields__})
    return bench_train.varied(options, changes, seed=0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_form_trains(small_config, tmp_path, case):
    """Every parameter gets a gradient within three steps, and what the state adds is lost where it is silent."""
    small_config.model.aggregator = False  # as of captures
    config = changed(small_config, case.changes)
    config.trainer.background_warmup = 0
    trainer = make_trainer(config, case.model)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    for _ in range(3):
        trainer.train_step()
    same = [name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])]
    assert same == []
    assert isinstance(trainer.model, FormRenderer) == config.model.aggregator
    if isinstance(trainer.model, FormRenderer):
        batch = trainer.views.draw(64)
        rays, background = batch.rays, batch.background
        renderings = [trainer.model(rays, background)]
        case.probe(trainer, lambda: renderings.append(trainer.model(rays, background)) or 0.0)
        heard, silent = renderings
        assert not torch.equal(heard.color, silent.color) and torch.equal(heard.opacity, silent.opacity)
        assert torch.equal(heard.color, trainer.model(rays, background).color), "heard again"


def test_the_form_that_ships_is_the_renderer(small_config, tmp_path):
    trainer = make_trainer(small_config)
    for _ in range(5):
        trainer.train_step()
    form = FormRenderer(Form(), small_config)
    form.load_state_dict(trainer.model.state_dict())
    batch = trainer.views.draw(64)
    rays, background = batch.rays, batch.background
    torch.testing.assert_close(form(rays, background).color, trainer.model(rays, background).color)


def test_mirrored_rows():
    order = mirrored(torch.tensor([0, 3, 3, 5]), 5)
    assert order.tolist() == [2, 1, 0, 4, 3]


def test_a_form_that_is_not_known(tmp_path):
    with raises_naming(UserError, "'wide'", *(case.name for case in CASES)):
        lltm_forms.main(["--variants", "wide"])
