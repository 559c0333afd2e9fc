"""What somebody who changes the import of a script meets first: each refused, with a message that
ends it.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import privlearn as pv
from privlearn._figures import private_figures
from privlearn.errors import BadInput, PrivacyWarning, PrivlearnError
from privlearn.opacus import (
    BatchMemoryManager,
    LambdaGradClip,
    LambdaNoise,
    ModuleValidator,
    PrivacyEngine,
)
from privlearn.opacus.strange_attributes import RETURNED, GradientToCome
from tests.opacus.checks import (
    X,
    Y,
    handed,
    loader,
    mean,
    network,
    private,
    sgd,
    step_on,
    trained,
    weights,
)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class WithItsLoss(nn.Module):
    """Computes a loss itself, as models of transformers do; of pairs of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any, y: Any) -> Any:
        output = self.inner(x)
        return F.cross_entropy(output @ output.T, torch.arange(len(x)))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def scaled() -> None:
    made = private()
    model, x, y = handed(made)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(mean(model, x, y)).backward()
    scaler.step(made[2])


def twice() -> None:
    made = private()
    model, x, y = handed(made)
    mean(model, x, y).backward()
    mean(model, x, y).backward()


def stepless() -> None:
    for _ in step_on(mean)[3]:
        pass


def trained_without_clearing() -> None:
    _, model, optimizer, batches = private()
    for x, y in batches:
        mean(model, x, y).backward()
        optimizer.step()


def stepped_twice() -> None:
    _, _, optimizer, _ = step_on(mean)
    optimizer.step()


def by_earlier_names(*names: str) -> None:
    """A step of a script that uses what it had before."""
    model, rows = network(), loader()
    optimizer = sgd(model)
    objects = {"model": model, "optimizer": optimizer, "loader": rows}
    returned = private(model, optimizer=optimizer, data_loader=rows)[1:]
    for name, each in zip(objects, returned, strict=True):
        objects[name] = objects[name] if name in names else each
    for x, y in objects["loader"]:  # type: ignore[attr-defined]
        mean(objects["model"], x, y).backward()
        objects["optimizer"].step()  # type: ignore[attr-defined]


def read_before_the_step(read: Callable[[Any], Any]) -> None:
    made = private()
    mean(*handed(made)).backward()
    read(made[1])


def mixup(model: Any, x: Tensor, y: Tensor) -> Tensor:
    order = torch.randperm(len(x))
    output = model(0.3 * x + 0.7 * x[order])
    return 0.3 * F.cross_entropy(output, y) + 0.7 * F.cross_entropy(output, y[order])


def penalised(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return mean(model, x, y) + 0.1 * sum(each.square().sum() for each in model.parameters())


def of_replaced_norms() -> None:
    model = batch_norm()
    optimizer = sgd(model)
    private(ModuleValidator.fix(model), optimizer=optimizer)


def on_earlier_weights() -> None:
    made = private()
    trained(made, epochs=1)
    best = copy.deepcopy(made[1].state_dict())
    trained(made, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        made[1].load_state_dict(best)
        made[0].publish("x")


def accumulated() -> None:
    _, model, _, batches = private(poisson_sampling=False)
    for x, y in batches:
        mean(model, x, y).backward()


def after_its_end() -> None:
    made = step_on(mean)
    made[0].close()
    trained(made)


def on_test_rows() -> None:
    made = private()
    next(iter(made[3]))
    mean(made[1], X, Y).backward()
    made[2].step()


def at_another_size() -> Any:
    made = step_on(mean)
    return BatchMemoryManager(
        data_loader=made[3], max_physical_batch_size=3, optimizer=made[2]
    ).__enter__()


def again(engine: PrivacyEngine) -> Any:
    model = network()
    return engine.make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=loader(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        epochs=1,
    )


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "batch norm": (lambda: private(batch_norm()), "nn.GroupNorm"),
    "scalar loss": (
        lambda: step_on(lambda m, x, y: m(x, y), model=WithItsLoss()),
        "criterion(output, target)",
    ),
    "a norm of the loss": (
        lambda: step_on(lambda m, x, y: F.cross_entropy(m(x), y).sqrt()),
        "criterion(output, target)",
    ),
    "a loss of copies": (
        lambda: step_on(
            lambda m, x, y: mean(lambda x: nn.Linear(6, 2)(torch.tensor(x.numpy())), x, y)
        ),
        "criterion(output, target)",
    ),
    "a sum": (
        lambda: step_on(lambda m, x, y: nn.CrossEntropyLoss(reduction="sum")(m(x), y)),
        "reduction='mean'",
    ),
    "a norm of the weights": (
        lambda: step_on(lambda m, x, y: (m(x) * m._module[3].weight.norm()).mean()),
        "weight_decay=",
    ),
    "iterable data set": (
        lambda: private(data_loader=DataLoader(Stream(), batch_size=5)),
        "map-style data set",
    ),
    "second backward": (twice, "(loss1 + loss2).backward()"),
    "drop_last": (lambda: private(data_loader=loader(drop_last=True)), "Leave it out"),
    "autograd": (
        lambda: step_on(lambda m, x, y: torch.autograd.grad(mean(m, x, y), [*m.parameters()])[0]),
        "loss.backward()",
    ),
    "no step": (stepless, "for every batch, an empty one"),
    "a pass to evaluate": (stepless, "To evaluate, take a loader of other, public rows"),
    "a scaler of gradients": (scaled, "leave out clip_grad_norm_, GradScaler"),
    "a step on other rows": (on_test_rows, "loss.backward() has to come before it"),
    "no noise, published": (
        lambda: private(noise_multiplier=0.0)[0].publish("x"),
        "a noise multiplier above 0",
    ),
    "a norm after the first batch": (
        lambda: setattr(step_on(mean)[2], "max_grad_norm", 0.1),
        "before the first batch",
    ),
    "the norm that there is": (
        lambda: setattr(private()[2], "max_grad_norm", 1.0),
        "schedulers from privlearn.opacus",
    ),
    "no zero_grad": (lambda: trained_without_clearing(), "optimizer.zero_grad() once"),
    "what Opacus's memory manager reads": (
        lambda: private()[3].batch_sampler,
        "Import BatchMemoryManager",
    ),
    "what Opacus's optimizer has": (lambda: private()[2].grad_samples, "from privlearn.opacus"),
    "a setting that is none": (
        lambda: setattr(private()[2], "generator", None),
        "is given to make_private",
    ),
    "a seed for noise": (
        lambda: private(noise_generator=torch.Generator()),
        "streams=pv.Streams.new(seed)",
    ),
    "an unknown way": (lambda: private(grad_sample_mode="ghost_fsdp"), "leave it out"),
    "no wrapper": (lambda: private(wrap_model=False), "train the module that make_private returns"),
    "sums": (lambda: private(loss_reduction="sum"), "multiply the learning rate"),
    "norms for each layer": (
        lambda: private(max_grad_norm=[1.0, 2.0], clipping="per_layer"),
        "one norm for all layers",
    ),
    "bounds of a clip that stays": (lambda: private(max_clipbound=2.0), "clipping='adaptive'"),
    "clipping by another name": (lambda: private(clipping="automatic"), "pv.make_private"),
    "two modules": (lambda: again(private()[0]), "another PrivacyEngine"),
    "nothing made": (lambda: PrivacyEngine().get_epsilon(1e-5), "make_private_with_epsilon first"),
    "an unknown accountant": (lambda: PrivacyEngine(accountant="moments"), "leave it out"),
    "a checkpoint before a step": (
        lambda: private()[0].save_checkpoint(path="x"),
        "after optimizer.step()",
    ),
    "a checkpoint of make_private": (
        lambda: private(checkpoint=3),
        "engine.save_checkpoint(path=FILE)",
    ),
    "a checkpoint that is none": (
        lambda: private()[0].load_checkpoint(path="x"),
        "that save_checkpoint of this engine wrote",
    ),
    "a step that is skipped by hand": (
        lambda: private()[2].signal_skip_step(),
        "BatchMemoryManager(max_physical_batch_size=...)",
    ),
    "more epochs": (lambda: trained(private(), epochs=3), "epochs= as there are passes"),
    "two physical sizes": (at_another_size, "microbatch="),
    "a second step": (stepped_twice, "Leave out the second step()"),
    "the optimizer of before": (lambda: by_earlier_names("optimizer"), RETURNED),
    "the model of before": (lambda: by_earlier_names("model"), RETURNED),
    "the loader of before": (lambda: by_earlier_names("loader"), RETURNED),
    "the model and loader of before": (lambda: by_earlier_names("model", "loader"), RETURNED),
    "the model and optimizer of before": (lambda: by_earlier_names("model", "optimizer"), RETURNED),
    "all of before": (lambda: by_earlier_names("model", "optimizer", "loader"), RETURNED),
    "clip_grad_norm_": (
        lambda: read_before_the_step(
            lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        ),
        "read p.grad after step(), before zero_grad()",
    ),
    "a norm before the step": (
        lambda: read_before_the_step(lambda model: next(model.parameters()).grad.norm()),
        "read p.grad after step(), before zero_grad()",
    ),
    "mixup": (lambda: step_on(mixup), "label_smoothing="),
    "a norm that is added": (lambda: step_on(penalised), "weight_decay="),
    "batch norm, fixed": (lambda: private(batch_norm()), "model = ModuleValidator.fix(model)"),
    "fixed after the optimizer": (of_replaced_norms, "from model.parameters(), after that"),
    "an earlier epoch's weights": (on_earlier_weights, "leave the loop there"),
    "several backward": (accumulated, "K times the batch_size"),
    "batches after the end": (after_its_end, "another PrivacyEngine"),
    "a stream": (lambda: step_on(mean)[0].save_checkpoint(path=io.BytesIO()), "path of a file"),
    "an argument that is none": (lambda: private(alphas=[1.0]), "alphas"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_what_to_do(name: str) -> None:
    make, advice = CASES[name]
    with pytest.raises((PrivlearnError, TypeError)) as caught:
        make()
    message = str(caught.value)
    assert advice in message
    assert len(message) <= 420
    assert message.count(". ") <= 2


def verified(made: tuple[Any, ...], out: Any) -> bool:
    return pv.verify(made[0].publish(out)).ok


def test_a_norm_of_the_released_gradient_can_be_read(tmp_path: Any) -> None:
    """After the step it is there; a stand-in is not, wherever the script was."""
    made = private()
    for x, y in made[3]:
        made[2].zero_grad()
        mean(made[1], x, y).backward()
        assert all(isinstance(each.grad, GradientToCome) for each in made[1].parameters())
        made[2].step()
        assert nn.utils.get_total_norm([each.grad for each in made[1].parameters()]) > 0
    made[0].run.optimizer.zero_grad()
    trained(made, epochs=1)
    assert verified(made, tmp_path / "model")


def test_a_gradient_that_stands_in_is_taken_away() -> None:
    made = private()
    with BatchMemoryManager(
        data_loader=made[3], max_physical_batch_size=4, optimizer=made[2]
    ) as parts:
        for x, y in parts:
            mean(made[1], x, y).backward()
            made[2].step()
            assert not any(isinstance(each.grad, GradientToCome) for each in made[1].parameters())
            made[2].zero_grad()
    x, y = next(iter(made[3]))
    mean(made[1], x, y).backward()
    made[1].zero_grad()
    assert all(each.grad is None for each in made[1].parameters())


@pytest.mark.parametrize("average", [False, True])
def test_a_run_that_is_left_at_its_best_is_published(average: bool, tmp_path: Any) -> None:
    made = private(**({"average": 0.5} if average else {}))
    trained(made, epochs=2 if average else 1)
    assert verified(made, tmp_path / "model")


def test_a_larger_batch_in_physical_ones_adds_up_gradients(tmp_path: Any) -> None:
    """What the message for several `backward()` advises: a step for two batches of 15."""
    made = private(data_loader=loader(batch_size=30), poisson_sampling=False)
    with BatchMemoryManager(
        data_loader=made[3], max_physical_batch_size=15, optimizer=made[2]
    ) as parts:
        for x, y in parts:
            mean(made[1], x, y).backward()
            made[2].step()
            made[2].zero_grad()
    assert made[0].run.steps_done == 2
    assert verified(made, tmp_path / "model")


def test_a_fixed_module_and_weight_decay_train(tmp_path: Any) -> None:
    model = ModuleValidator.fix(batch_norm())
    made = private(model, optimizer=sgd(model, weight_decay=0.1))
    trained(made)
    assert verified(made, tmp_path / "model")


def test_an_engine_ends_its_run_with_a_block() -> None:
    ledger = pv.Ledger(pv.Budget(epsilon=3.001, delta=1e-5))
    with PrivacyEngine() as engine:
        engine.close()
    with private(ledger=ledger)[0] as engine:
        pass
    made = private(ledger=ledger)
    with made[0]:
        trained(made, epochs=1)
    with pytest.raises(BadInput, match="another PrivacyEngine"):
        next(iter(made[3]))
    assert ledger.event.events


def test_what_torch_gives_with_an_empty_out_is_recorded() -> None:
    """`normalize` and the like pass `out=None` on."""

    def angle(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(5 * F.normalize(model(x), dim=1), y)

    assert trained(private(), angle).isfinite().all()


def test_opacuss_own_objects_meet_a_message() -> None:
    """Its memory manager and its schedulers read and write what a private object hasn't."""
    manager = pytest.importorskip("opacus.utils.batch_memory_manager").BatchMemoryManager
    schedulers = pytest.importorskip("opacus.schedulers")
    _, model, optimizer, batches = private()
    with pytest.raises(BadInput, match="from privlearn"):
        manager(data_loader=batches, max_physical_batch_size=4, optimizer=optimizer).__enter__()
    for make in (
        lambda: schedulers.StepGradClip(optimizer, step_size=1, gamma=0.1),
        lambda: schedulers.ExponentialNoise(optimizer, gamma=0.9),
    ):
        with pytest.raises(BadInput, match="from privlearn"):
            make()
    assert model.to_standard_module() is model._module
    assert not hasattr(optimizer, "grad_samples")


def test_a_script_without_epochs_is_warned() -> None:
    model = network()
    with pytest.warns(UserWarning, match="epochs="):
        PrivacyEngine().make_private(
            module=model,
            optimizer=sgd(model),
            data_loader=loader(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_a_module_is_validated_and_fixed() -> None:
    model = batch_norm()
    (error,) = ModuleValidator.validate(model)
    assert "nn.GroupNorm" in str(error)
    fixed = PrivacyEngine.get_compatible_module(model)
    assert ModuleValidator.is_valid(fixed)
    assert not PrivacyEngine.is_compatible(module=model)
    assert isinstance(model[1], nn.BatchNorm1d)
    trained(private(fixed))
    assert not ModuleValidator.is_valid(fixed.eval())
    images = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten())
    assert ModuleValidator.fix(images, num_groups=4)[1].num_groups == 4  # type: ignore[index]
    by_instance = ModuleValidator.fix(images, replace_bn_with_in=True)
    assert isinstance(by_instance[1], nn.InstanceNorm2d)  # type: ignore[index]
    assert ModuleValidator.is_valid(by_instance)
    with pytest.raises(BadInput):
        ModuleValidator.fix(images, replace_bn_with_in=True, num_groups=4)


def test_schedulers_state_dicts_and_closures_are_the_optimizers() -> None:
    model = network()
    optimizer = sgd(model, momentum=0.9)
    engine, module, own, batches = private(model, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # the loss is looked at below
        warnings.filterwarnings("ignore", "a private figure was", PrivacyWarning)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(own, 0.5)
        for x, y in batches:

            def closure() -> Any:
                own.zero_grad()
                loss = mean(module, x, y)  # noqa: B023
                loss.backward()
                return loss

            assert float(own.step(closure)) > 0
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == own.param_groups[0]["lr"] == 0.25
    state = own.state_dict()
    own.load_state_dict(state)
    assert own.param_groups is optimizer.param_groups
    assert {name.removeprefix("_module.") for name in module.state_dict()} == set(
        model.state_dict()
    )
    copied = network()
    copied.load_state_dict(engine.run.model.state_dict())
    assert torch.equal(weights(copied), weights(module))


def test_evaluation_is_the_models_own() -> None:
    _, module, _, batches = private()
    next(iter(batches))
    assert type(module(X)) is torch.Tensor
    assert module(X).requires_grad
    copied = copy.deepcopy(module)
    assert type(copied) is nn.Sequential
    assert torch.equal(weights(copied), weights(module))
    module.eval()
    assert not module._module.training


def test_poisson_sampling_false_is_priced_as_shuffling() -> None:
    engine = private(poisson_sampling=False)[0]
    assert engine.run.plan.sampling.kind == "shuffle"
    assert engine.run.plan.noise_multipliers()[0] > private()[0].run.plan.noise_multipliers()[0]


def test_ghost_mode_hands_the_criterion_back() -> None:
    criterion = nn.CrossEntropyLoss()
    engine, model, optimizer, given, batches = private(
        grad_sample_mode="ghost", criterion=criterion
    )
    assert given is criterion
    trained((engine, model, optimizer, batches), lambda m, x, y: given(m(x), y))


def test_rows_of_several_lengths_are_handed_out_padded() -> None:
    rows = [(torch.arange(1, 2 + n % 4), n % 2) for n in range(40)]

    def padded(rows: list[Any]) -> Any:
        return nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True), torch.tensor(
            [y for _, y in rows]
        )

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.out(self.embedding(x).sum(1))

    torch.manual_seed(0)
    made = private(Bag(), data_loader=DataLoader(rows, batch_size=10, collate_fn=padded))  # type: ignore[arg-type]
    assert trained(made).isfinite().all()


def test_rows_along_the_second_axis() -> None:
    def second(rows: list[Any]) -> Any:
        return torch.stack([x for x, _ in rows], 1), torch.tensor([int(y) for _, y in rows])

    made = private(
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=15, collate_fn=second),
        batch_first=False,
    )
    expected = trained(private())
    assert torch.equal(trained(made, lambda m, x, y: mean(m, x.transpose(0, 1), y)), expected)


def test_a_class_of_its_own_is_not_needed_for_the_accountant() -> None:
    engine = step_on(mean)[0]
    assert engine.accountant.get_epsilon(delta=1e-5) == engine.get_epsilon(1e-5) > 0
    assert len(engine.accountant) == 1
    assert isinstance(engine.run.ledger, pv.Ledger)
    with pytest.raises(BadInput):
        engine.load_checkpoint(path="x")


def test_empty_batches_pass_through_models_that_can_t_compute_one() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            if not len(x):
                raise ValueError("an empty batch")
            return self.out(self.cell(x.view(len(x), 3, 2))[0][:, -1])

    made = private(Recurrent(), noise_multiplier=1.0, sampling=pv.Poisson(0.01), epochs=1)
    sizes = []
    for x, y in made[3]:
        output = made[1](x)
        sizes.append(len(output))
        F.cross_entropy(output, y).backward()
        made[2].step()
        made[2].zero_grad()
        if len(sizes) == 12:
            break
    assert 0 in sizes


def test_no_private_figure_enters_a_scheduler_of_the_noise() -> None:
    figure = private_figures(0.7)
    for kind, function in ((LambdaNoise, "noise_lambda"), (LambdaGradClip, "scheduler_function")):
        _, _, optimizer, batches = private(noise_multiplier=1.0, epochs=2, max_grad_norm=1.0)
        kind(optimizer, **{function: lambda epoch: figure})
        with pytest.raises(BadInput, match="is a private figure"):
            next(iter(batches))
